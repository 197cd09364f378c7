"""Baichuan and Baichuan2: Llama with fused projections; the 13B has ALiBi in place of rotary.

All have `model_type` "baichuan" and no entry that names their kind. The class of the 7B has
`max_position_embeddings`, that of the 13B only `model_max_length`. Baichuan2 (its vocabulary is
125,696, the first one's 64,000) normalises the rows of its output layer in every forward pass.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from megatron_bridge.errors import ConfigError
from megatron_bridge.families import native, rows
from megatron_bridge.families.llama import LLAMA
from megatron_bridge.families.rows import H
from megatron_bridge.families.toy import TOY
from megatron_bridge.layouts import FUSED_QKV, NORMALIZED_VOCAB
from megatron_bridge.mapping import Config, Family, Field

ROTARY_BY_HIDDEN_SIZE = {4096: True, 5120: False}
"""Hidden sizes of the released 7B and 13B."""

SECOND_VOCAB = 125_696


def _positions(config: Config) -> dict[str, Any]:
    rotary = config.get("max_position_embeddings") is not None
    hidden: int = config["hidden_size"]
    if ROTARY_BY_HIDDEN_SIZE.get(hidden, rotary) != rotary:
        raise ConfigError(
            "baichuan: config.json does not say whether positions are rotary or ALiBi",
            where="config.json, max_position_embeddings",
            expected="in the 7B (hidden_size 4096, rotary), not in the 13B (5120, ALiBi)",
            got=f"{'there' if rotary else 'not there'} with hidden_size {hidden}",
            fix="use the config.json that belongs to the weights",
        )
    if not rotary:
        return {"position_embedding_type": "none", "alibi": "float32"}
    return {
        "position_embedding_type": "rope",
        "rotary_base": 10000.0,
        "rotary_percent": 1.0,
        "rope_scaling": None,
    }


def _output(config: Config) -> dict[str, Any]:
    second = config.get("vocab_size", 0) >= SECOND_VOCAB or "z_loss_weight" in config
    return {"normalized_output": second}


def _native(config: Config) -> tuple[Family, Config]:
    fields = BAICHUAN.megatron_config(config)
    if fields["position_embedding_type"] == "none":
        raise ConfigError(
            "baichuan: the 13B has no native class",
            where="config.json, max_position_embeddings",
            expected="the 7B, which is transformers' Llama",
            got="the 13B, whose positions are ALiBi",
            fix="export it in its original names",
        )
    family = LLAMA
    if fields["normalized_output"]:
        family = replace(
            LLAMA,
            rows=tuple(
                replace(row, layout=NORMALIZED_VOCAB) if row.needs == "untied" else row
                for row in LLAMA.rows
            ),
        )
    return family, native.config_of(
        LLAMA,
        fields,
        config,
        architecture="LlamaForCausalLM",
        vocab_size=config[BAICHUAN.vocab],
    )


BAICHUAN = Family(
    "baichuan",
    rows=(
        *rows.embeddings(),
        *rows.PRE_NORMS,
        *rows.linear(rows.QKV, H + "self_attn.W_pack", FUSED_QKV, sizes=rows.QKV_SIZES),
        *rows.linear(rows.PROJ, H + "self_attn.o_proj", sizes=rows.PROJ_SIZES),
        *rows.swiglu(),
    ),
    fields=(
        *(f for f in rows.DECODER_FIELDS if f.megatron != "max_sequence_length"),
        Field("max_sequence_length", "max_position_embeddings", other="model_max_length"),
    ),
    computed=(_positions, _output),
    fixed=rows.SWIGLU,
    only={"hidden_act": ("silu",), "tie_word_embeddings": (False,)},
    parts=rows.untied(),
    buffers=rows.ROTARY_BUFFERS,
    native=_native,
    toy={
        **{
            name: value
            for name, value in TOY.items()
            if name not in ("head_dim", "num_key_value_heads", "rope_parameters")
        },
        "model_type": "baichuan",
    },
)
