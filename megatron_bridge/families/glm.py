"""GLM in transformers' own classes: GLM-4-9B (`glm`) and GLM-4-0414 (`glm4`, two norms more)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from megatron_bridge.families import rotary, rows
from megatron_bridge.families.rows import H, M
from megatron_bridge.families.toy import TOY
from megatron_bridge.mapping import Config, Family, Field

PREFIX_MODELS = dict.fromkeys(
    ("block_position_encoding", "position_encoding_2d", "inner_hidden_size", "spell_func"),
    "the GLM of 2021 and ChatGLM-6B (the first) read their prompt in both directions and give every"
    " token two positions, which a causal GPT model does not",
)
"""Entries of `config.json` that only the older networks of the same `model_type` have."""


def _rope(config: Config) -> dict[str, Any]:
    """Half of each head is rotated unless `config.json` says otherwise."""
    return rotary.rope({"partial_rotary_factor": 0.5, **config})


GLM = Family(
    "glm",
    rows=(
        *rows.embeddings(),
        *rows.PRE_NORMS,
        *rows.attention(qkv_bias="attention bias"),
        *rows.linear(rows.FC1, H + "mlp.gate_up_proj", sizes=rows.GATED_SIZES),
        *rows.linear(rows.FC2, H + "mlp.down_proj", sizes=rows.FC2_SIZES),
    ),
    fields=(
        *rows.DECODER_FIELDS,
        Field("layernorm_epsilon", "rms_norm_eps", 1.5625e-7),
        Field("num_query_groups", "num_key_value_heads", 2),
        Field("kv_channels", "head_dim", 128),
        Field("max_sequence_length", "max_position_embeddings", 131072),
        Field("add_qkv_bias", "attention_bias", True),
    ),
    computed=(_rope,),
    fixed={**rows.SWIGLU, "rotary_interleaved": True},
    only={"hidden_act": ("silu",)},
    refused=PREFIX_MODELS,
    parts={
        **rows.untied(),
        "attention bias": lambda config: bool(config.get("attention_bias", True)),
    },
    toy={
        **TOY,
        "model_type": "glm",
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    },
)

GLM4 = replace(
    GLM,
    model_type="glm4",
    rows=(
        *GLM.rows,
        *rows.norm(M + "post_attn_norm.", H + "post_self_attn_layernorm"),
        *rows.norm(M + "post_mlp_norm.", H + "post_mlp_layernorm"),
    ),
    fixed={**GLM.fixed, "layer": "sandwich"},
    toy={**GLM.toy, "model_type": "glm4"},
)
