"""Qwen3, dense: Llama's network with a norm on each head's query and key."""

from megatron_bridge.families import rotary, rows
from megatron_bridge.families.toy import TOY
from megatron_bridge.mapping import Family

QWEN3 = Family(
    "qwen3",
    rows=(
        *rows.embeddings(),
        *rows.PRE_NORMS,
        *rows.attention(),
        *rows.QK_NORM,
        *rows.swiglu(),
    ),
    fields=rows.DECODER_FIELDS,
    computed=(rotary.rope, rows.switched_window),
    fixed={**rows.SWIGLU, "qk_layernorm": True},
    only={"hidden_act": ("silu",), "attention_bias": (False,)},
    parts=rows.untied(),
    buffers=rows.ROTARY_BUFFERS,
    toy={"model_type": "qwen3", **TOY},
)
