"""Qwen2 and Qwen2.5, dense: Llama's network with a bias on query, key and value."""

from megatron_bridge.families import rows
from megatron_bridge.mapping import Family

QWEN2 = Family(
    "qwen2",
    rows=rows.EMBEDDINGS + rows.GQA_ATTENTION + rows.QKV_BIAS + rows.SWIGLU,
    fields=rows.DECODER_FIELDS,
    rope=rows.rope,
    fixed={**rows.SWIGLU_DECODER, "add_qkv_bias": True},
    only={"hidden_act": ("silu",), "use_sliding_window": (False,)},
    parts=rows.UNTIED,
    buffers=rows.ROTARY_BUFFERS,
)
