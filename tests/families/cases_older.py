"""GPT-2 and the first StarCoder, StarCoder2, Falcon, BLOOM, OPT, GPT-NeoX, Cohere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from family_cases import Case, Control, Rows, UngroupedQKV, relayout, swap_names

from megatron_bridge import families
from megatron_bridge.layouts import FUSED_QKV, FUSED_QKV_T, GROUPED_QKV, TRANSPOSED


def toy(model_type: str, **changes: Any) -> dict[str, Any]:
    """The family's toy `config.json`, with changes."""
    return {**families.get(model_type).toy, **changes}


def split_qkv(rows: Rows) -> Rows:
    """A fused tensor taken for all of query above all of key above all of value."""
    return tuple(
        replace(row, layout=FUSED_QKV)
        if ".linear_qkv." in row.mcore and ".layer_norm_" not in row.mcore
        else row
        for row in rows
    )


EXACT_GELU = Control(fields={"activation_func": "gelu"})
NO_ALIBI = Control(fields={"alibi": None})
SEQUENTIAL = Control(fields={"layer": "sequential"})
SPLIT = Control(rows=split_qkv)
NAIVE = Control(rows=relayout(GROUPED_QKV, UngroupedQKV()))
SHIFTED = Control(fields={"position_offset": 1})
NO_OFFSET = Control(fields={"position_offset": 0})

CASES = [
    Case("gpt2", toy("gpt2"), {
        "exact gelu": EXACT_GELU,
        "qkv not grouped": Control(rows=relayout(FUSED_QKV_T, TRANSPOSED)),
        "positions shifted": SHIFTED,
    }),
    Case("gpt_bigcode, one KV head", toy("gpt_bigcode"), {
        "exact gelu": EXACT_GELU,
        "positions shifted": SHIFTED,
    }),
    Case("gpt_bigcode, KV heads", toy("gpt_bigcode", multi_query=False), {
        "qkv split before it is grouped": SPLIT,
    }),
    Case("starcoder2", toy("starcoder2"), {
        "window one wider": Control(fields={"window_size": [5, 0]}),
        "no window": Control(fields={"window_size": None}),
        "qkv not grouped": NAIVE,
    }),
    Case("falcon, 7B", toy("falcon"), {"MLP after attention": SEQUENTIAL}),
    Case("falcon, 40B", toy("falcon", new_decoder_architecture=True, num_kv_heads=2), {
        "the two norms swapped": Control(rows=swap_names("ln_attn", "ln_mlp")),
        "qkv split before it is grouped": SPLIT,
    }),
    Case("falcon, 11B",
         toy("falcon", new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1,
             tie_word_embeddings=False),
         {"MLP after attention": SEQUENTIAL, "qkv split before it is grouped": SPLIT}),
    Case("falcon, rw",
         toy("falcon", multi_query=False, parallel_attn=False, bias=True, alibi=True),
         {"no ALiBi": NO_ALIBI, "BLOOM's ALiBi": Control(fields={"alibi": "float32"})},
         attention="sdpa",
         note="against transformers' sdpa; its eager attention adds ALiBi twice"),
    Case("bloom", toy("bloom"), {
        "no ALiBi": NO_ALIBI,
        "Falcon's ALiBi": Control(fields={"alibi": "bfloat16, scaled"}),
        "the norm of the embeddings and the last swapped":
            Control(rows=swap_names(".word_embeddings_layernorm", ".ln_f")),
    }),
    Case("opt", toy("opt"), {
        "no offset of positions": NO_OFFSET,
        "gelu": EXACT_GELU,
        "norms swapped": Control(rows=swap_names("}.self_attn_layer_norm", "}.final_layer_norm")),
    }),
    Case("galactica",
         toy("opt", activation_function="gelu", enable_bias=False,
             layer_norm_elementwise_affine=False),
         {"no offset of positions": NO_OFFSET,
          "relu": Control(fields={"activation_func": "relu"})},
         note="model_type opt"),
    Case("gpt_neox", toy("gpt_neox"), {
        "MLP after attention": SEQUENTIAL,
        "the whole head rotated": Control(fields={"rotary_percent": 1.0}),
    }),
    Case("gpt_neox, sequential", toy("gpt_neox", use_parallel_residual=False), {
        "MLP beside attention": Control(fields={"layer": "parallel"}),
    }),
    Case("cohere", toy("cohere"), {
        "not interleaved": Control(fields={"rotary_interleaved": False}),
        "logits not scaled": Control(fields={"output_scale": None}),
        "MLP after attention": SEQUENTIAL,
    }),
]  # fmt: skip
