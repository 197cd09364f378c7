"""Runs under torchrun: every case in one layout; rank 0 of the last stage writes the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from safetensors.torch import load_file

from megatron_bridge import checkpoint, families
from megatron_bridge.config import ParallelConfig
from megatron_bridge.worker import checkpoints, logits, model, rank, specs


def work(text: str) -> None:
    spec = json.loads(text)
    parallel = ParallelConfig(**spec["layout"])
    rank.join(parallel, "float32")
    figures = {}
    for name, case in spec["cases"].items():
        try:
            figures[name] = measure(Path(case["folder"]), case, parallel)
        except Exception as error:
            if not spec.get("keep_going"):
                raise
            figures[name] = {"error": f"{type(error).__name__}: {error}"}
    if logits.is_writer():
        Path(spec["out"]).write_text(json.dumps(figures), encoding="utf-8")
    rank.leave()


def measure(root: Path, case: dict[str, Any], parallel: ParallelConfig) -> dict[str, Any]:
    """Compare one case's checkpoints with the reference's logits and gradients."""
    reference = load_file(root / "reference.safetensors")
    tokens, wanted = reference["tokens"], reference["logits"]
    gpt = build(root / "checkpoint", parallel)
    figures: dict[str, Any] = {"logits": difference(gpt, tokens, wanted)}
    figures["scale"] = float(wanted.abs().max())
    figures["engine"] = specs.uses_transformer_engine(gpt.config)
    figures["parameters"] = sorted(name for name, _ in gpt.named_parameters())
    if case["gradients"]:
        figures["gradient"], figures["gradient_at"] = gradients(gpt, root, parallel, reference)
    with torch.no_grad():
        if case["controls"]:
            figures["controls"] = controls(root, case, parallel, tokens, wanted)
    return figures


def build(folder: Path, parallel: ParallelConfig, changes: dict[str, Any] | None = None) -> Any:
    config = families.read_config(folder / checkpoint.HF_FILES)
    family = families.get(config["model_type"])
    fields = {**family.megatron_config(config), **(changes or {})}
    info = checkpoint.read_info(folder)
    gpt = model.build(fields, parallel, vocab_size=info.vocab_size)
    checkpoints.load_weights(gpt, folder)
    return gpt.eval()


def difference(gpt: Any, tokens: torch.Tensor, wanted: torch.Tensor) -> float:
    with torch.no_grad():
        part = logits.forward(gpt, tokens)
    if part is None:
        return 0.0
    whole = logits.gather_from_tensor_model_parallel_region(part)[..., : wanted.shape[-1]]
    return float((whole.cpu() - wanted).abs().max())


def controls(
    root: Path, case: dict[str, Any], parallel: ParallelConfig, tokens: Any, wanted: Any
) -> dict[str, float]:
    found = {}
    for name, changes in case["controls"].items():
        own = root / f"control {name}"
        gpt = build(own if own.is_dir() else root / "checkpoint", parallel, changes)
        found[name] = difference(gpt, tokens, wanted)
    gpt = build(root / "checkpoint", parallel)
    dict(gpt.named_parameters())["decoder.layers.0.self_attention.linear_proj.weight"][0, 0] += 1e-3
    found["one weight off by 1e-3"] = difference(gpt, tokens, wanted)
    return found


def gradients(
    gpt: Any, root: Path, parallel: ParallelConfig, reference: dict[str, torch.Tensor]
) -> tuple[float, str]:
    """Largest relative difference of any tensor's gradient of a fixed functional of the logits."""
    found = compare_gradients(gpt, root, parallel, reference)
    where = max(found, key=lambda name: found[name]["error"])
    return found[where]["error"], where


def compare_gradients(
    gpt: Any, root: Path, parallel: ParallelConfig, reference: dict[str, torch.Tensor]
) -> dict[str, dict[str, float]]:
    """Each tensor's gradient beside the right one: largest relative difference, and the factor."""
    from megatron.core.distributed.finalize_model_grads import (
        _allreduce_non_tensor_model_parallel_grads as sum_shared_gradients,
    )

    tokens, functional = reference["tokens"], reference["functional"]
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    device = torch.cuda.current_device()
    ddp = DistributedDataParallel(gpt.config, DistributedDataParallelConfig(), gpt)
    part = ddp(tokens.to(device), positions.to(device), None)
    first = parallel_state.get_tensor_model_parallel_rank() * part.shape[-1]
    mine = functional[..., first : first + part.shape[-1]].to(device)
    (part[..., : mine.shape[-1]] * mine).sum().backward()
    group = parallel_state.get_tensor_model_parallel_group()
    sum_shared_gradients([ddp], gpt.config, group)
    twin = dict(build(root / "gradient", parallel).named_parameters())
    found = {}
    for name, parameter in gpt.named_parameters():
        got, right = parameter.main_grad, twin[name]
        largest = torch.stack([(got - right).abs().max(), right.abs().max()])
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, group)
        products = torch.stack([(got * right).sum(), (right * right).sum()])
        torch.distributed.all_reduce(products, group=group)
        found[name] = {
            "error": float(largest[0] / largest[1].clamp_min(1e-30)),
            "factor": float(products[0] / products[1].clamp_min(1e-30)),
        }
    return found


if __name__ == "__main__":
    rank.run(work)
