"""Megatron's logits against transformers' on the folder that `save_pretrained` wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from safetensors.torch import load_file, save_file

from megatron_bridge import runs
from megatron_bridge.config import ParallelConfig
from megatron_bridge.convert import import_hf
from megatron_bridge.errors import ConfigError, InputError
from megatron_bridge.launch.local import LocalLauncher
from megatron_bridge.proof import TENSORS

LAYOUTS = [
    {},
    {"tensor_parallel": 2},
    {"tensor_parallel": 2, "sequence_parallel": True},
    {"pipeline_parallel": 2},
]
NAMES = ["one rank's layout", "tp 2", "tp 2 with sequence parallel", "pp 2"]
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 3.0, "original_max_position_embeddings": 40,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
}
CONTROLS = ["swapped", "naive qkv", "nudged", "empty"]
TOLERANCE = 5e-5


def _swapped(tensors: dict[str, torch.Tensor]) -> None:
    for name in [n for n in tensors if "gate_proj" in n]:
        other = name.replace("gate_proj", "up_proj")
        tensors[name], tensors[other] = tensors[other], tensors[name]


def _naive_qkv(tensors: dict[str, torch.Tensor]) -> None:
    """Rearrange so that Megatron's grouped tensor becomes q, k and v one after the other."""
    for name in [n for n in tensors if "q_proj" in n]:
        names = [name.replace("q_proj", f"{x}_proj") for x in "qkv"]
        whole = torch.cat([tensors[n] for n in names]).view(2, 5 * 20, 72)
        parts = whole.split([3 * 20, 20, 20], dim=1)
        for n, part in zip(names, parts, strict=True):
            tensors[n] = part.reshape(-1, 72).contiguous()


def _nudged(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.self_attn.o_proj.weight"][0, 0] += 1e-3


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("parity")
    tokens = torch.randint(0, 331, (3, 18), generator=torch.Generator().manual_seed(5))
    reference = {}
    for name, (kind, changes) in FAMILIES.items():
        model = toys.hf_model(kind, root / f"hf {name}", **changes)
        with torch.no_grad():
            reference[name] = model(tokens).logits
        import_hf(root / f"hf {name}", root / name, proof=TENSORS)
    wrong = {"swapped": _swapped, "naive qkv": _naive_qkv, "nudged": _nudged}
    for name, change in wrong.items():
        folder = root / f"hf {name}"
        shutil.copytree(root / "hf llama", folder)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        import_hf(folder, root / name, proof=TENSORS)
    shutil.copytree(root / "llama", root / "empty")
    spec = root / "parity.json"
    load = {name: True for name in [*FAMILIES, *wrong]} | {"empty": False}
    spec.write_text(json.dumps({"root": str(root), "layouts": LAYOUTS, "checkpoints": load,
                                "tokens": tokens.tolist()}))  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        LocalLauncher().run("parity_ranks", spec, 2)
    return {"root": root, "tokens": tokens, "reference": reference}


def _difference(results: dict[str, Any], name: str, layout: int, reference: str) -> float:
    found = load_file(results["root"] / f"{name}.{layout}.safetensors")["logits"]
    return float((found - results["reference"][reference]).abs().max())


@pytest.mark.parametrize("layout", range(len(LAYOUTS)), ids=NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_hugging_faces(results: dict[str, Any], family: str, layout: int) -> None:
    assert _difference(results, family, layout, family) < TOLERANCE


@pytest.mark.parametrize("layout", range(len(LAYOUTS)), ids=NAMES)
@pytest.mark.parametrize("control", CONTROLS)
def test_the_comparison_sees_a_wrong_model(
    results: dict[str, Any], control: str, layout: int
) -> None:
    assert _difference(results, control, layout, "llama") > 2 * TOLERANCE


def test_the_comparison_sees_missing_rope_scaling(results: dict[str, Any]) -> None:
    assert _difference(results, "llama", 0, "llama3 rope") > 2 * TOLERANCE


def test_logits_through_the_public_function(results: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    tokens = results["tokens"].tolist()
    runs.logits(results["root"] / "qwen2", tokens, out, ParallelConfig(tensor_parallel=2))
    found = load_file(out)["logits"]
    assert found.shape == (3, 18, 331)
    assert float((found - results["reference"]["qwen2"]).abs().max()) < TOLERANCE


def test_greedy_tokens_and_losses_of_prompts_of_different_length(results: dict[str, Any]) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(results["root"] / "hf qwen3")
    prompts = [results["tokens"][0, :5].tolist(), results["tokens"][1, :11].tolist()]
    wanted, losses = [], []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            logits = model(ids).logits[0, :-1]
            losses.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none"))
            for _ in range(6):
                ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
        wanted.append(ids[0, len(prompt) :].tolist())
    checkpoint = results["root"] / "qwen3"
    assert runs.generate(checkpoint, prompts, 6, ParallelConfig(pipeline_parallel=2)) == wanted
    found = runs.token_losses(checkpoint, prompts)
    for mine, theirs in zip(found, losses, strict=True):
        torch.testing.assert_close(torch.tensor(mine), theirs, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("layout", "field"),
    [
        ({"tensor_parallel": 4}, "tensor_parallel"),
        ({"pipeline_parallel": 3}, "pipeline_parallel"),
        ({"context_parallel": 2}, "context_parallel"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_before_ranks_start(
    results: dict[str, Any], tmp_path: Path, layout: dict[str, int], field: str
) -> None:
    with pytest.raises(ConfigError, match=field):
        runs.logits(results["root"] / "llama", [[1, 2]], tmp_path / "x", ParallelConfig(**layout))


@pytest.mark.parametrize("tokens", [[[1, 2], [1]], [[331]], [[]], []])
def test_tokens_that_do_not_fit_are_refused(
    results: dict[str, Any], tmp_path: Path, tokens: list[list[int]]
) -> None:
    with pytest.raises(InputError):
        runs.logits(results["root"] / "llama", tokens, tmp_path / "x")
