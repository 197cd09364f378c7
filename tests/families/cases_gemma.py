"""Gemma and Phi-3."""

from __future__ import annotations

from typing import Any

from cases_llama import SWAPPED, rope, toy
from family_cases import Case, Control, relayout, swap_names

from megatron_bridge import families
from megatron_bridge.layouts import AS_IS, FUSED_QKV

FUSED_AS_IS = Control(rows=relayout(FUSED_QKV, AS_IS))
NO_EMBEDDING_SCALE = Control(fields={"embedding_scale": None})


def _long(original: int) -> dict[str, Any]:
    """Phi-3's long rotary scaling; sequences here have 18 tokens."""
    scaling = rope("longrope", partial_rotary_factor=0.5,
                   short_factor=[1.0, 1.2, 1.5], long_factor=[1.3, 2.5, 7.0])  # fmt: skip
    return toy("phi3", rope_parameters=scaling, original_max_position_embeddings=original)


def _but(config: dict[str, Any], **changes: Any) -> Control:
    """The model's own rotary scaling with changes."""
    scaling = families.get("phi3").megatron_config(config)["rope_scaling"]
    return Control(fields={"rope_scaling": {**scaling, **changes}})


BEYOND, WITHIN = _long(16), _long(18)

CASES = [
    Case("gemma", toy("gemma"), {
        "embeddings not scaled": NO_EMBEDDING_SCALE,
        "norms not zero-centred": Control(fields={"layernorm_zero_centered_gamma": False}),
        "gate and up swapped": SWAPPED,
    }),
    Case("gemma2", toy("gemma2"), {
        "no soft cap on scores": Control(fields={"attention_softcap": None}),
        "no soft cap on logits": Control(fields={"output_softcap": None}),
        "windows on odd layers": Control(fields={"window_attn_skip_freq": [0, 1, 0, 1]}),
        "scores scaled by the head": Control(fields={"softmax_scale": 20**-0.5}),
        "norms in Llama's order": Control(
            rows=swap_names("post_attention_layernorm", "pre_feedforward_layernorm")),
    }),
    Case("gemma3_text", toy("gemma3_text"), {
        "one rotary base": Control(fields={"window_rotary_base": 100000.0}),
        "full layers not scaled": Control(fields={"rope_scaling": None}),
        "windows one wider": Control(fields={"window_size": [5, 0]}),
    }),
    Case("phi3", toy("phi3"), {
        "fused qkv as it is": FUSED_AS_IS,
        "whole heads rotated": Control(fields={"rotary_percent": 1.0}),
        "no window": Control(fields={"window_size": None}),
    }),
    Case("phi3, long rope beyond its length", BEYOND, {
        "no attention factor": _but(BEYOND, attention_factor=1.0),
        "the short factors": _but(BEYOND, original_max_position_embeddings=18),
    }),
    Case("phi3, long rope within its length", WITHIN, {
        "no attention factor": _but(WITHIN, attention_factor=1.0),
        "the long factors": _but(WITHIN, original_max_position_embeddings=17),
    }),
]  # fmt: skip
