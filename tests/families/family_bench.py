"""Prepares every case (reference, checkpoints, controls) and runs them, one launch a layout."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from family_cases import Case, Tensors
from safetensors.torch import load_file, save_file

from megatron_bridge import families
from megatron_bridge.convert import export_hf, import_hf
from megatron_bridge.launch.local import LocalLauncher
from megatron_bridge.proof import Proof

LAYOUTS: Mapping[str, tuple[int, dict[str, Any]]] = {
    "TP=1": (1, {}),
    "TP=2": (2, {"tensor_parallel": 2, "sequence_parallel": True}),
    "PP=2": (2, {"pipeline_parallel": 2}),
    "EP=2": (2, {"expert_parallel": 2}),
}
"""Layouts by name: ranks, and the fields of `ParallelConfig`."""

LENGTH = 18
TENSORS = Proof(architecture=False)
"""Built models are compared with `config.json` in a test of their own, in one start of a rank."""


def all_cases() -> list[Case]:
    """Every case of the files `cases_*.py` beside this one."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("cases_*.py"))
    return [case for name in names for case in importlib.import_module(name).CASES]


def run(cases: Iterable[Case], root: Path) -> dict[str, dict[str, Any]]:
    """Return figures by layout and case; each layout is one start of ranks."""
    cases = list(cases)
    for number, case in enumerate(cases):
        prepare(case, root / str(number))
    figures = {}
    for layout, (world, fields) in LAYOUTS.items():
        chosen = {
            case.name: {
                "folder": str(root / str(number)),
                "gradients": layout in ("TP=1", "TP=2"),
                "controls": {n: dict(c.fields) for n, c in case.controls.items()}
                if layout == "TP=1"
                else {},
            }
            for number, case in enumerate(cases)
            if layout in layouts_of(case)
        }
        if not chosen:
            continue
        figures[layout] = launch(root, layout, {"layout": fields, "cases": chosen}, world)
    return figures


def launch(root: Path, name: str, job: dict[str, Any], world: int) -> dict[str, Any]:
    """Run `family_ranks` once, on `world` ranks, and return its figures by case."""
    spec, out = root / f"{name}.json", root / f"{name}.figures.json"
    spec.write_text(json.dumps({**job, "out": str(out)}))
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with environment(PYTHONPATH=os.pathsep.join(paths)):
        LocalLauncher().run("family_ranks", spec, world)
    figures: dict[str, Any] = json.loads(out.read_text())
    return figures


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set variables of the environment within the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def layouts_of(case: Case) -> list[str]:
    """The layouts that a case is tried in: experts are spread only where there are some."""
    fields = families.get(case.config["model_type"]).megatron_config(case.config)
    return [name for name in LAYOUTS if name != "EP=2" or fields.get("num_moe_experts")]


def prepare(case: Case, folder: Path) -> None:
    """Write the model, its gradients, its reference answers, and a checkpoint of each."""
    model = build(case)
    tokens = torch.randint(
        0, model.config.vocab_size, (2, LENGTH), generator=torch.Generator().manual_seed(5)
    )
    answer = case.logits or (lambda model, ids: model(ids).logits)
    logits = answer(model, tokens)
    functional = torch.randn(logits.shape, generator=torch.Generator().manual_seed(9))
    folder.mkdir(parents=True)
    save_file(
        {"tokens": tokens, "logits": logits.detach().contiguous(), "functional": functional},
        folder / "reference.safetensors",
    )
    save(case, model, folder / "hf")
    import_hf(folder / "hf", folder / "checkpoint", proof=TENSORS)
    for name, control in case.controls.items():
        if control.rows is not None:
            with ChangedRows(case, control.rows):
                import_hf(folder / "hf", folder / f"control {name}", proof=TENSORS)
    (logits * functional).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            gradient = parameter.grad
            parameter.copy_(torch.zeros_like(parameter) if gradient is None else gradient)
    save(case, model, folder / "hf gradient")
    import_hf(folder / "hf gradient", folder / "gradient", proof=TENSORS)


def build(case: Case) -> Any:
    """Return the reference model with random weights, in float32."""
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if case.native is not None:
            model = case.native(case.config)
        else:
            config = transformers.AutoConfig.for_model(**case.config)
            model = transformers.AutoModelForCausalLM.from_config(
                config, attn_implementation=case.attention
            )
    model = model.float().eval()
    zero_centred = (
        families.get(case.config["model_type"])
        .megatron_config(case.config)
        .get("layernorm_zero_centered_gamma", False)
    )
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim > 1:
                spread = 0.4 if is_embedding(name) else 1.2 / min(weight.shape[-2:]) ** 0.5
                weight.copy_(noise * spread)
            else:
                is_norm = name.endswith("weight") and not zero_centred
                weight.copy_(0.1 * noise + (1.0 if is_norm else 0.0))
        for name, buffer in model.named_buffers():
            if "correction_bias" in name:
                buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
    return model


def is_embedding(name: str) -> bool:
    return any(word in name for word in ("embed", "wte", "wpe"))


def save(case: Case, model: Any, folder: Path) -> None:
    """Write what a user has: the family's own `config.json` and tensor names."""
    model.save_pretrained(folder)
    if case.rename is None:
        return
    tensors: Tensors = load_file(folder / "model.safetensors")
    renamed = {name: t.contiguous() for name, t in case.rename(tensors, case.config).items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(dict(case.config)))


class ChangedRows:
    """Within the block, the case's family has other rows."""

    def __init__(self, case: Case, change: Any) -> None:
        self.key, self.change = case.config["model_type"], change

    def __enter__(self) -> None:
        self.before = families.FAMILIES[self.key]
        rows = self.change(self.before.rows)
        families.FAMILIES[self.key] = dataclasses.replace(self.before, rows=rows)

    def __exit__(self, *_: object) -> None:
        families.FAMILIES[self.key] = self.before


def round_trip(case: Case, dtype: torch.dtype, folder: Path) -> tuple[Tensors, Tensors]:
    """Return the tensors of the model's files before the import and after the export."""
    save(case, build(case).to(dtype), folder / "hf")
    import_hf(folder / "hf", folder / "checkpoint", proof=TENSORS)
    export_hf(folder / "checkpoint", folder / "back", proof=TENSORS)
    return load_file(folder / "hf" / "model.safetensors"), load_file(
        folder / "back" / "model.safetensors"
    )
