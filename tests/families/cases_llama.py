"""Llama and its kin, Qwen, and the mixtures of experts without latent attention."""

from __future__ import annotations

from typing import Any

from family_cases import Case, Control, UngroupedQKV, relayout, reverse_pairs, swap_names

from megatron_bridge import families
from megatron_bridge.layouts import GROUPED_QKV

NAIVE = Control(rows=relayout(GROUPED_QKV, UngroupedQKV()))
SWAPPED = Control(rows=reverse_pairs)


def toy(model_type: str, **changes: Any) -> dict[str, Any]:
    """The family's toy `config.json`, with changes."""
    return {**families.get(model_type).toy, **changes}


def rope(kind: str, **constants: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **constants}


def _internlm(config: Any) -> Any:
    import transformers

    sizes = {k: v for k, v in config.items() if k not in ("model_type", "bias")}
    native = transformers.LlamaConfig(**sizes, attention_bias=True)
    return transformers.AutoModelForCausalLM.from_config(native, attn_implementation="eager")


LLAMA3 = rope(
    "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)  # fmt: skip
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=32)
LONG = {"short_factor": [1.0 + 0.1 * i for i in range(10)],
        "long_factor": [2.0 + 0.3 * i for i in range(10)]}  # fmt: skip
NO_SCALING = Control(fields={"rope_scaling": None})

CASES = [
    Case("llama", toy("llama"), {
        "qkv not grouped": NAIVE,
        "gate and up swapped": SWAPPED,
        "interleaved rotary": Control(fields={"rotary_interleaved": True}),
        "rotary base 1 % off": Control(fields={"rotary_base": 10100.0}),
    }),
    Case("llama, biases, tied", toy("llama", attention_bias=True, mlp_bias=True,
                                    tie_word_embeddings=True), {"qkv not grouped": NAIVE}),
    Case("llama, linear rope", toy("llama", rope_parameters=rope("linear", factor=4.0)),
         {"no scaling": NO_SCALING}),
    Case("llama, llama3 rope", toy("llama", rope_parameters=LLAMA3), {"no scaling": NO_SCALING}),
    Case("llama, yarn rope", toy("llama", rope_parameters=YARN), {
        "no scaling": NO_SCALING,
        "no attention factor": Control(fields={"rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "attention_factor": 1.0}}),
    }),
    Case("llama, dynamic rope beyond its length",
         toy("llama", max_position_embeddings=8, rope_parameters=rope("dynamic", factor=2.0)),
         {"no scaling": NO_SCALING}),
    Case("internlm", toy("internlm"), {"qkv not grouped": NAIVE}, native=_internlm,
         rename=lambda tensors, config: tensors,
         note="against transformers' Llama with `attention_bias`"),
    Case("mistral", toy("mistral"), {
        "window one wider": Control(fields={"window_size": [5, 0]}),
        "no window": Control(fields={"window_size": None}),
    }),
    Case("qwen2", toy("qwen2"), {
        "windows on all layers": Control(fields={"window_attn_skip_freq": None}),
        "qkv not grouped": NAIVE,
    }),
    Case("qwen3", toy("qwen3"), {
        "norms of query and key swapped": Control(rows=swap_names("q_norm", "k_norm")),
    }),
    Case("mixtral", toy("mixtral"), {
        "softmax before the choice": Control(fields={"moe_router_pre_softmax": True}),
        "gate and up swapped": SWAPPED,
    }),
    Case("qwen2_moe", toy("qwen2_moe"), {
        "softmax after the choice": Control(fields={"moe_router_pre_softmax": False}),
    }),
    Case("qwen3_moe", toy("qwen3_moe"), {
        "softmax before the choice": Control(fields={"moe_router_pre_softmax": True}),
    }),
    Case("qwen3_moe, not renormalised", toy("qwen3_moe", norm_topk_prob=False), {
        "softmax after the choice": Control(fields={"moe_router_pre_softmax": False}),
    }),
]  # fmt: skip
