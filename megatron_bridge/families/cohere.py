"""Cohere's Command R: one norm without bias for attention and MLP side by side, scaled logits."""

from __future__ import annotations

from typing import Any

from megatron_bridge.families import rotary, rows
from megatron_bridge.families.toy import TOY
from megatron_bridge.mapping import Config, Family, Field


def _rope(config: Config) -> dict[str, Any]:
    return rotary.rope({"rope_theta": 500000.0, **config})


COHERE = Family(
    "cohere",
    rows=(
        *rows.embeddings(),
        *rows.norm(rows.ATTENTION_NORM, rows.H + "input_layernorm"),
        *rows.attention(),
        *rows.swiglu(),
    ),
    fields=(
        *rows.SIZE_FIELDS,
        Field("layernorm_epsilon", "layer_norm_eps", 1e-5),
        Field("output_scale", "logit_scale", 0.0625),
        rows.TIED,
    ),
    computed=(_rope,),
    fixed={
        **rows.SWIGLU,
        "normalization": "LayerNorm",
        "norm": "no bias",
        "layer": "parallel",
        "shared_norm": True,
        "rotary_interleaved": True,
    },
    only={
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "use_qk_norm": (False, None),
    },
    parts=rows.untied(True),
    buffers=rows.ROTARY_BUFFERS,
    toy={
        "model_type": "cohere",
        **{key: value for key, value in TOY.items() if key != "rms_norm_eps"},
        "tie_word_embeddings": True,
    },
)
