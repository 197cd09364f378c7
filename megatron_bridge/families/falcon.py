"""Falcon: 7B, 40B and 180B, Falcon2-11B, and the RefinedWeb models with ALiBi."""

from __future__ import annotations

from typing import Any, Literal

from megatron_bridge.families import rotary, rows
from megatron_bridge.families.toy import SIZES
from megatron_bridge.mapping import Config, Family, Field

H = "transformer.h.{layer}."


def _norms(config: Config) -> Literal["sequential", "shared", "two"]:
    """How a layer is built: MLP after attention, or beside it with its norm or with another."""
    new = config.get("new_decoder_architecture")
    if not new and not config.get("parallel_attn", True):
        return "sequential"
    norms = config.get("num_ln_in_parallel_attn") or 2
    return "two" if new and norms == 2 else "shared"


def _layer(config: Config) -> dict[str, Any]:
    norms = _norms(config)
    return {
        "layer": "sequential" if norms == "sequential" else "parallel",
        "shared_norm": norms == "shared",
    }


def _query_groups(config: Config) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    if config.get("new_decoder_architecture"):
        return {"num_query_groups": config.get("num_kv_heads") or heads}
    return {"num_query_groups": 1 if config.get("multi_query", True) else heads}


def _positions(config: Config) -> dict[str, Any]:
    if config.get("alibi"):
        return {"position_embedding_type": "none", "alibi": "bfloat16, scaled"}
    return rotary.rope(config)


FALCON = Family(
    "falcon",
    rows=(
        *rows.embeddings("transformer.word_embeddings", "transformer.ln_f", bias=True),
        *rows.norm(rows.ATTENTION_NORM, H + "input_layernorm", bias=True, needs="one norm"),
        *rows.norm(rows.MLP_NORM, H + "post_attention_layernorm", bias=True, needs="sequential"),
        *rows.norm(rows.ATTENTION_NORM, H + "ln_attn", bias=True, needs="two norms"),
        *rows.norm(rows.MLP_NORM, H + "ln_mlp", bias=True, needs="two norms"),
        *rows.fused_linears(H, "self_attention", bias="bias"),
    ),
    fields=(
        *rows.HEAD_FIELDS,
        Field("ffn_hidden_size", "ffn_hidden_size", lambda c: 4 * c["hidden_size"]),
        Field("max_sequence_length", "max_position_embeddings", 2048),
        Field("layernorm_epsilon", "layer_norm_epsilon", 1e-5),
        Field("add_bias_linear", "bias", False),
        rows.TIED,
    ),
    computed=(_layer, _query_groups, _positions, rows.activation("activation", "gelu")),
    fixed=rows.GPT,
    parts={
        **rows.untied(True),
        "bias": lambda config: bool(config.get("bias")),
        "sequential": lambda config: _norms(config) == "sequential",
        "one norm": lambda config: _norms(config) != "two",
        "two norms": lambda config: _norms(config) == "two",
    },
    tied=("lm_head.weight", "transformer.word_embeddings.weight"),
    toy={"model_type": "falcon", **SIZES, "ffn_hidden_size": 92},
)
