"""Runs under torchrun on two ranks: what comes out where a layout rule is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import family_ranks
import torch
from megatron.core import parallel_state
from safetensors.torch import load_file

from megatron_bridge.config import ParallelConfig
from megatron_bridge.worker import hooks, model, rank


def work(text: str) -> None:
    spec = json.loads(text)
    rank.join(ParallelConfig(tensor_parallel=2), "float32")
    found = {}
    for name, job in spec["jobs"].items():
        parallel = ParallelConfig(**job["layout"])
        parallel_state.destroy_model_parallel()
        rank.form_groups(parallel)
        kept = hooks.sum_rotary_key_gradients if job.get("hook", True) else lambda gpt: None
        with mock.patch.object(hooks, "sum_rotary_key_gradients", kept):
            both: list[Any] = [None, None]
            mine = build(job, parallel) if "fields" in job else measure(job, parallel)
            torch.distributed.all_gather_object(both, mine)
        found[name] = both
    if torch.distributed.get_rank() == 0:
        Path(spec["out"]).write_text(json.dumps(found), encoding="utf-8")
    rank.leave()


def build(job: dict[str, Any], parallel: ParallelConfig) -> str:
    """Return how building the model ends on this rank: the error, or nothing."""
    try:
        model.build(job["fields"], parallel, vocab_size=331)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def measure(job: dict[str, Any], parallel: ParallelConfig) -> dict[str, Any]:
    """Return the difference of the logits, each tensor's gradient, and how a training step ends."""
    root = Path(job["folder"])
    reference = load_file(root / "reference.safetensors")
    gpt = family_ranks.build(root / "checkpoint", parallel)
    answer = {
        "logits": family_ranks.difference(gpt, reference["tokens"], reference["logits"]),
        "gradients": family_ranks.compare_gradients(gpt, root, parallel, reference),
        "training": "",
    }
    try:
        family_ranks.difference(gpt.train(), reference["tokens"], reference["logits"])
    except ValueError as error:
        answer["training"] = str(error)
    return answer


if __name__ == "__main__":
    rank.run(work)
