"""Qwen2 and 2.5, dense: Llama's network with biases on query, key and value."""

from megatron_bridge.families import rotary, rows
from megatron_bridge.families.toy import TOY
from megatron_bridge.mapping import Family

QWEN2 = Family(
    "qwen2",
    rows=(
        *rows.embeddings(),
        *rows.PRE_NORMS,
        *rows.attention(qkv_bias=True),
        *rows.swiglu(),
    ),
    fields=rows.DECODER_FIELDS,
    computed=(rotary.rope, rows.switched_window),
    fixed={**rows.SWIGLU, "add_qkv_bias": True},
    only={"hidden_act": ("silu",)},
    parts=rows.untied(),
    buffers=rows.ROTARY_BUFFERS,
    toy={
        "model_type": "qwen2",
        **TOY,
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
)
