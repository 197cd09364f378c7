"""GPT-2, and the first StarCoder (`gpt_bigcode`), which has its names and another attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from megatron_bridge.families import rows
from megatron_bridge.layouts import AS_IS, FUSED_QKV_T, TRANSPOSED, Layout
from megatron_bridge.mapping import Config, Family, Field, Row

H = "transformer.h.{layer}."


def _rows(qkv: Layout, matrix: Layout) -> tuple[Row, ...]:
    """Rows of both; the layouts are those of `c_attn` and of the other matrices."""
    return (
        *rows.embeddings("transformer.wte", "transformer.ln_f", bias=True),
        *rows.linear(rows.POSITIONS, "transformer.wpe", sizes=rows.POSITIONS_SIZES),
        *rows.norm(rows.ATTENTION_NORM, H + "ln_1", bias=True),
        *rows.linear(rows.QKV, H + "attn.c_attn", qkv, sizes=rows.QKV_SIZES, bias=True),
        *rows.linear(rows.PROJ, H + "attn.c_proj", matrix, sizes=rows.PROJ_SIZES, bias=True),
        *rows.norm(rows.MLP_NORM, H + "ln_2", bias=True),
        *rows.linear(rows.FC1, H + "mlp.c_fc", matrix, sizes=rows.FC1_SIZES, bias=True),
        *rows.linear(rows.FC2, H + "mlp.c_proj", matrix, sizes=rows.FC2_SIZES, bias=True),
    )


def _query_groups(config: Config) -> dict[str, Any]:
    return {"num_query_groups": 1 if config.get("multi_query", True) else config["n_head"]}


GPT2 = Family(
    "gpt2",
    rows=_rows(FUSED_QKV_T, TRANSPOSED),
    fields=(
        Field("num_layers", "n_layer"),
        Field("hidden_size", "n_embd"),
        Field("ffn_hidden_size", "n_inner", lambda c: 4 * c["n_embd"]),
        Field("num_attention_heads", "n_head"),
        Field("num_query_groups", "n_head"),
        Field("kv_channels", "head_dim", lambda c: c["n_embd"] // c["n_head"]),
        Field("max_sequence_length", "n_positions"),
        Field("layernorm_epsilon", "layer_norm_epsilon", 1e-5),
        rows.TIED,
    ),
    computed=(rows.activation("activation_function", "gelu_new"),),
    fixed={**rows.GPT, "position_embedding_type": "learned_absolute"},
    only={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False,),
        "add_cross_attention": (False,),
    },
    parts=rows.untied(True),
    # Causal masks, which transformers kept in the files of its first years.
    buffers=(r"transformer\.h\.\d+\.attn\.(masked_)?bias",),
    tied=("lm_head.weight", "transformer.wte.weight"),
    prefix="transformer.",
    toy={
        "model_type": "gpt2",
        "n_embd": 72,
        "n_layer": 4,
        "n_head": 6,
        "n_inner": 92,
        "n_positions": 130,
        "vocab_size": 331,
        "bos_token_id": None,
        "eos_token_id": 330,
    },
)

GPT_BIGCODE = replace(
    GPT2,
    model_type="gpt_bigcode",
    # One KV head, or query, key and value of each head together: Megatron's order in both cases.
    rows=_rows(AS_IS, AS_IS),
    computed=(rows.activation("activation_function", "gelu_pytorch_tanh"), _query_groups),
    only={"scale_attn_weights": (True,), "add_cross_attention": (False,)},
    toy={**GPT2.toy, "model_type": "gpt_bigcode"},
)
