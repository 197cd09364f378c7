"""Megatron's layer specs with our parts in them; runs on the ranks only.

Both specs, the local one and Transformer Engine's, give the same checkpoint keys: norms that lie
before a linear layer are named as that layer's, as Transformer Engine names them.
"""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import torch
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from megatron_bridge.options import ATTENTION_NORM, LATENT_NORMS, MLP_NORM
from megatron_bridge.worker import modules, routing

LAYERS = {"parallel": modules.ParallelLayer, "sandwich": modules.SandwichLayer}


def block(config: Any) -> TransformerBlockSubmodules:
    """Return the specs of this pipeline stage's own layers, and of the final norm."""
    engine = uses_transformer_engine(config)
    kinds = config.moe_layer_freq if isinstance(config.moe_layer_freq, list) else None
    first = get_transformer_layer_offset(config)
    mine = range(first, first + get_num_layers_to_build(config))
    sparse = [bool(config.num_moe_experts) and (kinds is None or bool(kinds[i])) for i in mine]
    make = _engine_layer if engine else _local_layer
    specs = {kind: make(config, kind) for kind in set(sparse)}
    return TransformerBlockSubmodules(
        layer_specs=[specs[kind] for kind in sparse],
        layer_norm=_engine_norm() if engine else modules.Norm,
    )


def uses_transformer_engine(config: Any) -> bool:
    """True where a GPU and Transformer Engine are there and its spec can carry the model."""
    return (
        torch.cuda.is_available()
        and importlib.util.find_spec("transformer_engine") is not None
        and config.ours.why_local is None
    )


def _local_layer(config: Any, sparse: bool) -> Any:
    latent = config.multi_latent_attention
    spec: Any = gpt_layer_specs.get_gpt_layer_local_spec(
        normalization=config.normalization,
        qk_layernorm=config.qk_layernorm,
        num_experts=config.num_moe_experts if sparse else None,
        multi_latent_attention=latent,
    )
    layer, attention = spec.submodules, spec.submodules.self_attention.submodules
    layer.input_layernorm = modules.Norm
    layer.pre_mlp_layernorm = IdentityOp if config.ours.shared_norm else modules.Norm
    for name in ("q_layernorm", "k_layernorm", "kv_layernorm"):
        if getattr(attention, name, IdentityOp) is not IdentityOp:
            setattr(attention, name, modules.Norm)
    # The local attention knows one size for keys and values; latent attention has two.
    if config.ours.needs_own_attention or latent:
        attention.core_attention = modules.CoreAttention
    if config.ours.attention_output_bias:
        attention.linear_proj = modules.BiasRow
    layer.sharded_state_dict_keys_map = {
        **(LATENT_NORMS if latent else ATTENTION_NORM),
        **({} if sparse else MLP_NORM),
    }
    return _with_options(spec, config, sparse)


def _engine_layer(config: Any, sparse: bool) -> Any:
    spec: Any = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(
        qk_layernorm=config.qk_layernorm,
        num_experts=config.num_moe_experts if sparse else None,
        moe_grouped_gemm=config.moe_grouped_gemm,
        multi_latent_attention=config.multi_latent_attention,
    )
    return _with_options(spec, config, sparse)


def _with_options(spec: Any, config: Any, sparse: bool) -> Any:
    options = config.ours
    if options.window_rotary_base is not None:
        spec.module = modules.TwoRotaryLayer
    elif options.layer != "sequential":
        spec.module = LAYERS[options.layer]
    if sparse and options.group_score == "max":
        mlp = spec.submodules.mlp
        # 0.16 has a spec here, 0.19 a function with its arguments bound.
        parts = mlp.keywords["submodules"] if isinstance(mlp, partial) else mlp.submodules
        parts.router = routing.GroupMaxRouter
    if config.multi_latent_attention and config.q_lora_rank is None:
        spec.submodules.self_attention.module = modules.WholeQueryAttention
    return spec


def _engine_norm() -> Any:
    from megatron.core.extensions.transformer_engine import TENorm

    return TENorm
