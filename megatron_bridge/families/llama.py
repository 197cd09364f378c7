"""Llama 1 to 3, and what shares its network: CodeLlama, Yi, SmolLM2, InternLM, Mistral."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from megatron_bridge.errors import ConfigError
from megatron_bridge.families import native, rotary, rows
from megatron_bridge.families.toy import TOY
from megatron_bridge.mapping import Config, Family


def _biases(config: Config) -> dict[str, Any]:
    """Megatron has one switch for every bias and one for query, key and value.

    `attention_bias` puts one on the attention's output too, `mlp_bias` on the MLP.
    """
    attention, mlp = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
    if mlp and not attention:
        raise ConfigError(
            "llama: a bias in the MLP and none in the attention cannot be carried over",
            where="config.json, mlp_bias",
            expected="mlp_bias false, or attention_bias true as well",
            got="mlp_bias true, attention_bias false",
            fix="convert a model without this switch",
        )
    only = attention and not mlp
    return {"add_bias_linear": mlp, "add_qkv_bias": only, "attention_output_bias": only}


LLAMA = Family(
    "llama",
    rows=(
        *rows.embeddings(),
        *rows.PRE_NORMS,
        *rows.attention(qkv_bias="attention bias", output_bias="attention bias"),
        *rows.swiglu(bias="mlp bias"),
    ),
    fields=rows.DECODER_FIELDS,
    computed=(rotary.rope, _biases),
    fixed=rows.SWIGLU,
    only={"hidden_act": ("silu",)},
    parts={
        **rows.untied(),
        "attention bias": lambda config: bool(config.get("attention_bias")),
        "mlp bias": lambda config: bool(config.get("mlp_bias")),
    },
    buffers=rows.ROTARY_BUFFERS,
    toy={"model_type": "llama", **TOY},
)


def _internlm_rope(config: Config) -> dict[str, Any]:
    """Later files say in `rotary` what Llama's say in `rope_scaling`."""
    given = config.get("rotary")
    if not given:
        return rotary.rope(config)
    kind = "dynamic" if given.get("type") == "dynamic" else "default"
    base, factor = given.get("base", 10000), given.get("scaling_factor", 1.0)
    rope = {"rope_type": kind, "rope_theta": base, "factor": factor}
    return rotary.rope({**config, "rope_parameters": rope})


def _internlm_native(config: Config) -> tuple[Family, Config]:
    return LLAMA, native.config_of(
        LLAMA,
        INTERNLM.megatron_config(config),
        config,
        architecture="LlamaForCausalLM",
        vocab_size=config["vocab_size"],
        attention_bias=config.get("bias", True),
    )


INTERNLM = replace(
    LLAMA,
    model_type="internlm",
    computed=(_internlm_rope, lambda config: _biases({"attention_bias": config.get("bias", True)})),
    parts={
        **rows.untied(),
        "attention bias": lambda config: bool(config.get("bias", True)),
        "mlp bias": lambda config: False,
    },
    native=_internlm_native,
    toy={"model_type": "internlm", **TOY, "bias": True},
)
"""InternLM-1: Llama with `bias` for `attention_bias`; its class is remote code."""

MISTRAL = Family(
    "mistral",
    rows=(*rows.embeddings(), *rows.PRE_NORMS, *rows.attention(), *rows.swiglu()),
    fields=rows.DECODER_FIELDS,
    computed=(rotary.rope, rows.window),
    fixed=rows.SWIGLU,
    only={"hidden_act": ("silu",)},
    parts=rows.untied(),
    buffers=rows.ROTARY_BUFFERS,
    toy={"model_type": "mistral", **TOY, "sliding_window": 5},
)
