"""Rows and fields that several families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron_bridge.errors import ConfigError
from megatron_bridge.layouts import GROUPED_QKV, STACKED, VOCAB
from megatron_bridge.mapping import Field, Row

M, H = "decoder.layers.{layer}.", "model.layers.{layer}."

EMBEDDINGS = (
    Row(
        "embedding.word_embeddings.weight",
        ("model.embed_tokens.weight",),
        VOCAB,
        sizes=("vocabulary", "hidden"),
    ),
    Row("decoder.final_layernorm.weight", ("model.norm.weight",), sizes=("hidden",)),
    Row(
        "output_layer.weight",
        ("lm_head.weight",),
        VOCAB,
        needs="untied",
        sizes=("vocabulary", "hidden"),
    ),
)

GQA_ATTENTION = (
    Row(
        M + "self_attention.linear_qkv.layer_norm_weight",
        (H + "input_layernorm.weight",),
        sizes=("hidden",),
    ),
    Row(
        M + "self_attention.linear_qkv.weight",
        tuple(H + f"self_attn.{x}_proj.weight" for x in "qkv"),
        GROUPED_QKV,
        sizes=("heads and KV heads", "hidden"),
    ),
    Row(
        M + "self_attention.linear_proj.weight",
        (H + "self_attn.o_proj.weight",),
        sizes=("hidden", "heads"),
    ),
)

QKV_BIAS = (
    Row(
        M + "self_attention.linear_qkv.bias",
        tuple(H + f"self_attn.{x}_proj.bias" for x in "qkv"),
        GROUPED_QKV,
        sizes=("heads and KV heads",),
    ),
)

QK_NORM = tuple(
    Row(
        M + f"self_attention.{x}_layernorm.weight",
        (H + f"self_attn.{x}_norm.weight",),
        sizes=("head",),
    )
    for x in "qk"
)

SWIGLU = (
    Row(
        M + "mlp.linear_fc1.layer_norm_weight",
        (H + "post_attention_layernorm.weight",),
        sizes=("hidden",),
    ),
    Row(
        M + "mlp.linear_fc1.weight",
        (H + "mlp.gate_proj.weight", H + "mlp.up_proj.weight"),
        STACKED,
        sizes=("gate and up", "hidden"),
    ),
    Row(
        M + "mlp.linear_fc2.weight",
        (H + "mlp.down_proj.weight",),
        sizes=("hidden", "ffn"),
    ),
)

DECODER_FIELDS = (
    Field("num_layers", "num_hidden_layers"),
    Field("hidden_size", "hidden_size"),
    Field("ffn_hidden_size", "intermediate_size"),
    Field("num_attention_heads", "num_attention_heads"),
    Field("num_query_groups", "num_key_value_heads", lambda c: c["num_attention_heads"]),
    Field("kv_channels", "head_dim", lambda c: c["hidden_size"] // c["num_attention_heads"]),
    Field("layernorm_epsilon", "rms_norm_eps", 1e-6),
    Field("max_sequence_length", "max_position_embeddings"),
    Field("share_embeddings_and_output_weights", "tie_word_embeddings", False),
)

SWIGLU_DECODER: Mapping[str, Any] = {
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation_func": "silu",
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "rotary_percent": 1.0,
}

UNTIED = {"untied": lambda config: not config.get("tie_word_embeddings", False)}

ROTARY_BUFFERS = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)


def rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return rotary base and scaling; reads both spellings of `config.json`.

    transformers 5 writes `rope_parameters`; before, `rope_theta` and `rope_scaling`.

    Raises:
        ConfigError: a kind of rotary scaling that is not supported.
    """
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = scaling.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
    kind = scaling.get("rope_type") or scaling.pop("type", None) or "default"
    if kind == "default":
        return {"rotary_base": base, "rope_scaling": None}
    if kind != "llama3":
        raise ConfigError(
            "This rotary scaling is not supported",
            where="config.json, rope_parameters",
            expected="'default' or 'llama3'",
            got=repr(kind),
            fix="convert a model with one of these",
        )
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    missing = [key for key in keys if key not in scaling]
    if missing:
        raise ConfigError(
            "The llama3 rotary scaling is incomplete",
            where="config.json, rope_parameters",
            expected=", ".join(keys),
            got=f"no {', '.join(missing)}",
            fix="use the config.json that belongs to the weights",
        )
    return {
        "rotary_base": base,
        "rope_scaling": {"rope_type": kind} | {key: scaling[key] for key in keys},
    }
