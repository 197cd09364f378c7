"""Megatron-Core's GPT model, built from a family's fields and a layout. Runs on the ranks only."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import math
from collections.abc import Mapping
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer import TransformerConfig
from torch import nn

from megatron_bridge.config import ParallelConfig
from megatron_bridge.errors import ConfigError
from megatron_bridge.mapping import padded_vocab_size

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ACTIVATIONS = {"silu": nn.functional.silu, "gelu": nn.functional.gelu}
MODEL_FIELDS = (
    "max_sequence_length",
    "position_embedding_type",
    "rotary_base",
    "rotary_percent",
    "share_embeddings_and_output_weights",
)


def build(
    fields: Mapping[str, Any],
    parallel: ParallelConfig,
    *,
    vocab_size: int,
    dtype: str = "float32",
    extras: Mapping[str, Any] | None = None,
) -> GPTModel:
    """Return this rank's part of the model, its matrices all zero.

    Args:
        fields: what `Family.megatron_config` returns.
        parallel: the layout; Megatron's process groups exist already.
        vocab_size: the true number of tokens. The model's vocabulary is padded to a multiple of
            128 x TP, and the logits of padding are minus infinity, so that the loss does not
            depend on the padding.
        dtype: of the parameters and of the computation.
        extras: further `TransformerConfig` fields, given by the user.

    Raises:
        ConfigError: an extra is unknown to the installed Megatron-Core or set elsewhere.
    """
    config = _transformer_config(fields, parallel, dtype, extras or {})
    # 0.19 marks GPTModel deprecated in favour of HybridModel; this is the only construction.
    model = GPTModel(
        config,
        _layer_spec(config),
        vocab_size=padded_vocab_size(vocab_size, 128 * parallel.tensor_parallel),
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
        **{name: fields[name] for name in MODEL_FIELDS if name in fields},
    )
    if fields.get("rope_scaling"):
        rotary: Any = model.rotary_pos_emb
        rotary.inv_freq = llama3_inverse_frequencies(rotary.inv_freq, **fields["rope_scaling"])
    if parallel_state.is_pipeline_last_stage():
        _hide_padding(model, vocab_size)
    return model.to(torch.cuda.current_device()) if torch.cuda.is_available() else model


def llama3_inverse_frequencies(
    inverse: torch.Tensor,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
    rope_type: str = "llama3",
) -> torch.Tensor:
    """Return rotary inverse frequencies stretched as Llama 3.1 does.

    Megatron's own version has all constants but `factor` fixed. Source: transformers,
    `modeling_rope_utils._compute_llama3_parameters`.
    """
    wavelength = 2 * math.pi / inverse
    ratio = original_max_position_embeddings / wavelength
    smooth = (ratio - low_freq_factor) / (high_freq_factor - low_freq_factor)
    between = (1 - smooth) * inverse / factor + smooth * inverse
    stretched = torch.where(ratio < low_freq_factor, inverse / factor, between)
    return torch.where(ratio > high_freq_factor, inverse, stretched)


def _transformer_config(
    fields: Mapping[str, Any], parallel: ParallelConfig, dtype: str, extras: Mapping[str, Any]
) -> TransformerConfig:
    known = {field.name for field in dataclasses.fields(TransformerConfig) if field.init}
    ours = {name: value for name, value in fields.items() if name in known}
    ours["activation_func"] = ACTIVATIONS[fields["activation_func"]]
    ours |= {
        "tensor_model_parallel_size": parallel.tensor_parallel,
        "pipeline_model_parallel_size": parallel.pipeline_parallel,
        "context_parallel_size": parallel.context_parallel,
        "expert_model_parallel_size": parallel.expert_parallel,
        "sequence_parallel": parallel.sequence_parallel,
        "params_dtype": DTYPES[dtype],
        "pipeline_dtype": DTYPES[dtype],
        "bf16": dtype == "bfloat16",
        # Weights are loaded, never drawn. `perform_initialization=False` would be the switch, but
        # it also leaves out the mark of tensor-parallel weights, and with it the gradient norm of
        # all ranks but the first.
        "init_method": nn.init.zeros_,
        "output_layer_init_method": nn.init.zeros_,
        # Gradients are summed over tokens and divided once, by the tokens of the global batch, so
        # that the step does not depend on how samples are spread over ranks and micro-batches.
        "calculate_per_token_loss": True,
        # It needs Apex.
        "gradient_accumulation_fusion": False,
    }
    defaults = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    if not torch.cuda.is_available():
        ours["use_cpu_initialization"] = True
        fusions = ("bias_dropout_fusion", "bias_activation_fusion", "masked_softmax_fusion")
        ours |= dict.fromkeys((*fusions, "apply_rope_fusion", "persist_layer_norm"), False)
    _check_extras(extras, known, {*ours, *MODEL_FIELDS})
    return TransformerConfig(**{**defaults, **ours, **extras})


def _check_extras(extras: Mapping[str, Any], known: set[str], taken: set[str]) -> None:
    for name in extras:
        if name in taken:
            raise ConfigError(
                f"megatron.{name} is set elsewhere",
                where=f"megatron.{name}",
                expected="a field that neither the model's config.json nor the recipe sets",
                got=name,
                fix="remove it, and use the recipe's own field where there is one",
            )
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known - taken), n=1)
            raise ConfigError(
                f"Megatron-Core has no field {name!r}",
                where=f"megatron.{name}",
                expected="a field of the installed TransformerConfig",
                got=name,
                fix=f"the nearest name is {near[0]}" if near else "remove it",
            )


def _layer_spec(config: TransformerConfig) -> Any:
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.transformer_block import (
        TransformerBlockSubmodules,
        get_num_layers_to_build,
    )

    from megatron_bridge.worker.modules import Norm

    if torch.cuda.is_available() and importlib.util.find_spec("transformer_engine"):
        return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(
            qk_layernorm=config.qk_layernorm
        )
    spec = gpt_layer_specs.get_gpt_layer_local_spec(
        normalization=config.normalization, qk_layernorm=config.qk_layernorm
    )
    layer: Any = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = Norm
    attention = layer.self_attention.submodules
    for name in ("q_layernorm", "k_layernorm"):
        if getattr(attention, name) is not IdentityOp:
            setattr(attention, name, Norm)
    # A list of layer specs holds this stage's own layers only.
    return TransformerBlockSubmodules(
        layer_specs=[spec] * get_num_layers_to_build(config), layer_norm=Norm
    )


def _hide_padding(model: GPTModel, vocab_size: int) -> None:
    def hook(module: Any, inputs: Any, outputs: tuple[torch.Tensor, Any]) -> Any:
        logits, bias = outputs
        columns = logits.shape[-1]
        first = parallel_state.get_tensor_model_parallel_rank() * columns
        if first + columns <= vocab_size:
            return outputs
        padding = torch.arange(columns, device=logits.device) >= vocab_size - first
        return logits.masked_fill(padding, -torch.inf), bias

    model.output_layer.register_forward_hook(hook)
