"""Rotary frequencies and attention factors, against transformers' own functions."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from megatron_bridge.families import rotary

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Megatron-Core's imports tell of what torch will drop
    from megatron_bridge.worker import rope

LENGTH = 130
LISTS = {
    "short_factor": [1.0 + 0.1 * i for i in range(10)],
    "long_factor": [2.0 + 0.3 * i for i in range(10)],
}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 40}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "linear": ({"rope_type": "linear", "factor": 3.0}, (18,)),
    "linear, whole number": ({"rope_type": "linear", "factor": 3}, (18,)),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.5}, (1, 129, 130, 131, 150, 777)),
    "llama3": ({"rope_type": "llama3", "factor": 8.0, **LLAMA3}, (18,)),
    "llama3, Llama 3.2's constants": (
        {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, **LLAMA3,
         "original_max_position_embeddings": 8192}, (18,)),
    "yarn": ({"rope_type": "yarn", **YARN}, (18,)),
    "yarn, not truncated": ({"rope_type": "yarn", **YARN, "truncate": False}, (18,)),
    "yarn, other turns": (
        {"rope_type": "yarn", **YARN, "beta_fast": 9.0, "beta_slow": 2.0}, (18,)),
    "yarn, mscale": (
        {"rope_type": "yarn", **YARN, "mscale": 0.7, "mscale_all_dim": 0.4}, (18,)),
    "yarn, mscale alone": ({"rope_type": "yarn", **YARN, "mscale": 0.7}, (18,)),
    "yarn, given attention factor": (
        {"rope_type": "yarn", **YARN, "attention_factor": 1.3}, (18,)),
    "longrope": (
        {"rope_type": "longrope", **LISTS, "original_max_position_embeddings": 32},
        (18, 32, 33, 130)),
    "longrope, factor": (
        {"rope_type": "longrope", **LISTS, "original_max_position_embeddings": 32, "factor": 2.0},
        (32, 33)),
    "longrope, given attention factor": (
        {"rope_type": "longrope", **LISTS, "original_max_position_embeddings": 32,
         "attention_factor": 1.2}, (33,)),
}  # fmt: skip


def config(scaling: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "hidden_size": 72,
        "num_attention_heads": 6,
        "head_dim": 20,
        "max_position_embeddings": LENGTH,
        "rope_parameters": {"rope_theta": 10000.0, **scaling},
        **changes,
    }


def theirs(ours: dict[str, Any], length: int | None) -> tuple[torch.Tensor, float]:
    native = transformers.LlamaConfig(**ours)
    compute = ROPE_INIT_FUNCTIONS[native.rope_parameters["rope_type"]]
    return compute(native, "cpu", seq_len=length)


def frequencies(ours: dict[str, Any], length: int) -> torch.Tensor:
    fields = rotary.rope(ours)
    dim = int(ours["head_dim"] * fields["rotary_percent"])
    return rope.frequencies(fields["rotary_base"], dim, fields["rope_scaling"], length)


@pytest.mark.parametrize("name", CASES)
def test_frequencies_and_factor_are_transformers(name: str) -> None:
    scaling, lengths = CASES[name]
    given = config(scaling)
    factor = rotary.rope(given)["rope_scaling"].get("attention_factor", 1.0)
    for length in lengths:
        wanted, wanted_factor = theirs(given, length)
        torch.testing.assert_close(frequencies(given, length), wanted, rtol=3e-7, atol=0.0)
        assert factor == pytest.approx(wanted_factor, rel=1e-15)


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "yarn"])
def test_a_part_of_each_head_is_rotated(kind: str) -> None:
    given = config({**CASES[kind][0], "partial_rotary_factor": 0.4})
    for length in (18, 150):
        found, (wanted, _) = frequencies(given, length), theirs(given, length)
        assert len(found) == 4
        torch.testing.assert_close(found, wanted, rtol=3e-7, atol=0.0)


def test_a_model_length_beside_the_scaling_comes_first() -> None:
    for kind in ("llama3", "yarn", "longrope"):
        given = config(CASES[kind][0], original_max_position_embeddings=64)
        wanted, factor = theirs(given, 50)
        torch.testing.assert_close(frequencies(given, 50), wanted, rtol=3e-7, atol=0.0)
        found = rotary.rope(given)["rope_scaling"]
        assert found["original_max_position_embeddings"] == 64
        assert found.get("attention_factor", 1.0) == pytest.approx(factor, rel=1e-15)


@pytest.mark.parametrize("name", CASES)
def test_the_comparison_sees_one_percent(name: str) -> None:
    scaling, lengths = CASES[name]
    given = config(scaling)
    wanted, _ = theirs(given, lengths[-1])
    base = 1.01 * given["rope_parameters"]["rope_theta"]
    given["rope_parameters"]["rope_theta"] = base
    assert not torch.allclose(frequencies(given, lengths[-1]), wanted, rtol=3e-7, atol=0.0)
