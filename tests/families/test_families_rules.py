"""The rules of `validate_layout`: what each prevents, on real ranks, and that it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import family_bench
import pytest

from megatron_bridge import families
from megatron_bridge.config import ParallelConfig, TrainConfig, validate_layout
from megatron_bridge.errors import ConfigError
from megatron_bridge.launch.local import LocalLauncher

ALONE = {"tensor_parallel": 2}
SUMMED = {"tensor_parallel": 2, "sequence_parallel": True}
LOGITS, GRADIENTS = 5e-5, 1e-4


def fields(model_type: str, **changes: Any) -> dict[str, Any]:
    """Megatron's fields of a toy whose `config.json` is changed."""
    family = families.get(model_type)
    return family.megatron_config({**family.toy, **changes})


# Tied embeddings would have the first stage wait for the last within the model's constructor.
WINDOWS = fields("qwen2", tie_word_embeddings=False)
SHORT = {**WINDOWS, "window_attn_skip_freq": WINDOWS["window_attn_skip_freq"][:2]}
BROKEN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a window for some layers only": (SHORT, {"pipeline_parallel": 2}, "window_attn_skip_freq"),
    "expert parallel without experts": (fields("llama"), {"expert_parallel": 2}, "expert_parallel"),
    "5 experts on 2 ranks": (
        fields("mixtral", num_local_experts=5), {"expert_parallel": 2}, "expert_parallel"),
    "experts of odd size": (
        fields("qwen3_moe", moe_intermediate_size=35), SUMMED, "tensor_parallel"),
    "shared experts of odd size": (
        fields("qwen2_moe", shared_expert_intermediate_size=45), SUMMED, "tensor_parallel"),
    "dense layers of odd size": (
        fields("deepseek_v2", intermediate_size=91), SUMMED, "tensor_parallel"),
    "query latent of odd size": (
        fields("deepseek_v2", q_lora_rank=45), SUMMED, "tensor_parallel"),
    "key-value latent of odd size": (
        fields("deepseek_v2", kv_lora_rank=37), SUMMED, "tensor_parallel"),
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What both ranks find, by job: one start of ranks for all."""
    root = tmp_path_factory.mktemp("rules")
    cases = {case.name: case for case in family_bench.all_cases()}
    jobs: dict[str, Any] = {
        name: {"fields": changed, "layout": layout} for name, (changed, layout, _) in BROKEN.items()
    }
    for name in ("mixtral", "deepseek_v2"):
        family_bench.prepare(cases[name], root / name)
    experts, latent = {"folder": str(root / "mixtral")}, {"folder": str(root / "deepseek_v2")}
    jobs["experts alone"] = {**experts, "layout": ALONE}
    jobs["experts summed"] = {**experts, "layout": SUMMED}
    jobs["latent alone"] = {**latent, "layout": ALONE, "hook": False}
    jobs["latent without the hook"] = {**latent, "layout": SUMMED, "hook": False}
    jobs["latent summed"] = {**latent, "layout": SUMMED}
    (root / "jobs.json").write_text(json.dumps({"jobs": jobs, "out": str(root / "found.json")}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        patch.setenv("OMP_NUM_THREADS", "1")
        LocalLauncher().run("rule_ranks", root / "jobs.json", 2)
    answer: dict[str, Any] = json.loads((root / "found.json").read_text())
    return answer


def _refusal(changed: dict[str, Any], layout: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        validate_layout(changed, ParallelConfig(**layout), family_bench.LENGTH)
    return str(caught.value)


def _worst(gradients: dict[str, Any], word: str = "", but: str = "no such word") -> float:
    return max(g["error"] for n, g in gradients.items() if word in n and but not in n)


def test_experts_alone_get_twice_their_gradient(found: dict[str, Any]) -> None:
    alone = found["experts alone"][0]
    assert alone["logits"] < LOGITS
    factors = [g["factor"] for n, g in alone["gradients"].items() if "experts" in n]
    assert factors == pytest.approx([2.0] * len(factors), rel=1e-4)
    assert _worst(alone["gradients"], but="experts") < GRADIENTS
    assert "sequence parallelism" in alone["training"]
    summed = found["experts summed"][0]
    assert _worst(summed["gradients"]) < GRADIENTS
    assert summed["training"] == ""
    assert "Where: sequence_parallel" in _refusal(fields("mixtral"), ALONE)
    validate_layout(fields("mixtral"), ParallelConfig(**SUMMED), family_bench.LENGTH)


@pytest.mark.parametrize("job", ["latent alone", "latent without the hook"])
def test_the_rotary_keys_gradient_must_be_summed(found: dict[str, Any], job: str) -> None:
    broken = found[job][0]
    assert broken["logits"] < LOGITS
    assert _worst(broken["gradients"], "linear_kv_down_proj") > 0.01
    assert _worst(found["latent summed"][0]["gradients"]) < GRADIENTS


def test_latent_attention_alone_is_refused() -> None:
    dense = {k: v for k, v in fields("deepseek_v2").items() if not k.startswith("moe")}
    dense["num_moe_experts"] = None
    text = _refusal(dense, ALONE)
    assert "Where: sequence_parallel" in text
    assert "latent attention" in text


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_layout_is_refused_before_the_ranks_fail(found: dict[str, Any], name: str) -> None:
    changed, layout, where = BROKEN[name]
    assert any(found[name]), "Megatron builds it: the rule is not needed"
    assert f"Where: {where}" in _refusal(changed, layout)


def test_only_the_last_stage_misses_its_window(found: dict[str, Any]) -> None:
    first, last = found["a window for some layers only"]
    assert first == ""
    assert last.startswith("IndexError")


def test_experts_are_spread_over_the_data_parallel_ranks() -> None:
    with pytest.raises(ConfigError, match="data-parallel ranks"):
        TrainConfig(world_size=3, expert_parallel=2, global_batch_size=3)
    TrainConfig(world_size=4, expert_parallel=2, global_batch_size=4)
