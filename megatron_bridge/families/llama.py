"""Llama 1, 2, 3 and the models that share its network (Yi, CodeLlama, SmolLM2)."""

from megatron_bridge.families import rows
from megatron_bridge.mapping import Family

LLAMA = Family(
    "llama",
    rows=rows.EMBEDDINGS + rows.GQA_ATTENTION + rows.SWIGLU,
    fields=rows.DECODER_FIELDS,
    rope=rows.rope,
    fixed=rows.SWIGLU_DECODER,
    only={"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)},
    parts=rows.UNTIED,
    buffers=rows.ROTARY_BUFFERS,
)
