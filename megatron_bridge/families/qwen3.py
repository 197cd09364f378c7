"""Qwen3, dense: Llama's network with a norm on each head's query and key."""

from megatron_bridge.families import rows
from megatron_bridge.mapping import Family

QWEN3 = Family(
    "qwen3",
    rows=rows.EMBEDDINGS + rows.GQA_ATTENTION + rows.QK_NORM + rows.SWIGLU,
    fields=rows.DECODER_FIELDS,
    rope=rows.rope,
    fixed={**rows.SWIGLU_DECODER, "qk_layernorm": True},
    only={
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "use_sliding_window": (False,),
    },
    parts=rows.UNTIED,
    buffers=rows.ROTARY_BUFFERS,
)
