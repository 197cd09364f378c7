"""Mixtral and Qwen's mixtures: decoders whose MLP is a choice of experts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from megatron_bridge.families import rotary, rows
from megatron_bridge.families.rows import H
from megatron_bridge.families.toy import EXPERTS, TOY
from megatron_bridge.mapping import Config, Family, Field

QWEN_EXPERTS = (
    Field("num_moe_experts", "num_experts", other="num_local_experts"),
    Field("moe_router_topk", "num_experts_per_tok"),
    Field("moe_ffn_hidden_size", "moe_intermediate_size"),
)


def _sparse(config: Config) -> list[int]:
    """The layers with experts: every `decoder_sparse_step`-th, but `mlp_only_layers`."""
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    layers = range(config["num_hidden_layers"])
    return [layer for layer in layers if layer not in dense and (layer + 1) % step == 0]


def _kinds(config: Config) -> dict[str, Iterable[int]]:
    sparse = _sparse(config)
    layers = range(config["num_hidden_layers"])
    return {"sparse": sparse, "dense": [layer for layer in layers if layer not in sparse]}


def _qwen_routing(config: Config) -> dict[str, Any]:
    """Qwen takes softmax over all experts; renormalised, that is softmax over the chosen ones."""
    fields: dict[str, Any] = {"moe_router_pre_softmax": not config.get("norm_topk_prob", False)}
    sparse = _sparse(config)
    if len(sparse) < config["num_hidden_layers"]:
        fields["moe_layer_freq"] = [
            int(layer in sparse) for layer in range(config["num_hidden_layers"])
        ]
    return fields


_QWEN_LAYERS = (
    *rows.norm(rows.ATTENTION_NORM, H + "input_layernorm"),
    *rows.norm(rows.MLP_NORM, H + "post_attention_layernorm", layers="dense"),
    *rows.norm(rows.EXPERTS_NORM, H + "post_attention_layernorm", layers="sparse"),
    *rows.swiglu(layers="dense"),
    *rows.experts(layers="sparse"),
)

MIXTRAL = Family(
    "mixtral",
    rows=(
        *rows.embeddings(),
        *rows.norm(rows.ATTENTION_NORM, H + "input_layernorm"),
        *rows.norm(rows.EXPERTS_NORM, H + "post_attention_layernorm"),
        *rows.attention(),
        *rows.experts(
            H + "block_sparse_moe.gate",
            H + "block_sparse_moe.experts.{expert}.",
            ("w1", "w3", "w2"),
        ),
    ),
    fields=(
        *rows.DECODER_FIELDS,
        Field("num_moe_experts", "num_local_experts"),
        Field("moe_router_topk", "num_experts_per_tok"),
        Field("moe_ffn_hidden_size", "intermediate_size"),
    ),
    computed=(rotary.rope, rows.window),
    fixed={**rows.SWIGLU, "moe_router_pre_softmax": False},
    only={"hidden_act": ("silu",)},
    parts=rows.untied(),
    buffers=rows.ROTARY_BUFFERS,
    toy={
        "model_type": "mixtral",
        **TOY,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
)

QWEN2_MOE = Family(
    "qwen2_moe",
    rows=(
        *rows.embeddings(),
        *_QWEN_LAYERS,
        *rows.attention(qkv_bias=True),
        *rows.shared_experts(
            H + "mlp.shared_expert", gate=H + "mlp.shared_expert_gate", layers="sparse"
        ),
    ),
    fields=(
        *rows.DECODER_FIELDS,
        *QWEN_EXPERTS,
        Field("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"),
    ),
    computed=(rotary.rope, _qwen_routing),
    fixed={**rows.SWIGLU, "add_qkv_bias": True, "moe_shared_expert_gate": True},
    only={"hidden_act": ("silu",), "qkv_bias": (True,), "use_sliding_window": (False,)},
    parts=rows.untied(),
    layer_sets=_kinds,
    buffers=rows.ROTARY_BUFFERS,
    toy={
        "model_type": "qwen2_moe",
        **TOY,
        **EXPERTS,
        "shared_expert_intermediate_size": 44,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
        "norm_topk_prob": False,
    },
)


def _whole_window(config: Config) -> dict[str, Any]:
    """Qwen3's mixture has the window on all layers or on none."""
    return rows.window(config) if config.get("use_sliding_window") else {}


QWEN3_MOE = Family(
    "qwen3_moe",
    rows=(*rows.embeddings(), *_QWEN_LAYERS, *rows.attention(), *rows.QK_NORM),
    fields=(*rows.DECODER_FIELDS, *QWEN_EXPERTS),
    computed=(rotary.rope, _qwen_routing, _whole_window),
    fixed={**rows.SWIGLU, "qk_layernorm": True},
    only={"hidden_act": ("silu",), "attention_bias": (False,)},
    parts=rows.untied(),
    layer_sets=_kinds,
    buffers=rows.ROTARY_BUFFERS,
    toy={"model_type": "qwen3_moe", **TOY, **EXPERTS, "norm_topk_prob": True},
)
