"""Megatron-Core's GPT model, built from a family's fields and a layout. Runs on the ranks only."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from torch import nn

from megatron_bridge import options
from megatron_bridge.config import ParallelConfig
from megatron_bridge.errors import ConfigError
from megatron_bridge.mapping import VOCAB_DIVISOR, padded_vocab_size
from megatron_bridge.worker import hooks, rope, specs
from megatron_bridge.worker.modules import OurConfig, OurMLAConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(x, approximate="tanh")


ACTIVATIONS = {
    "silu": nn.functional.silu,
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": _gelu_tanh,
}
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
    config = transformer_config(fields, parallel, dtype, extras or {})
    # 0.19 marks GPTModel deprecated in favour of HybridModel; this is the only construction.
    model = GPTModel(
        config,
        specs.block(config),
        vocab_size=padded_vocab_size(vocab_size, VOCAB_DIVISOR * parallel.tensor_parallel),
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
        **{name: fields[name] for name in MODEL_FIELDS if name in fields},
    )
    if config.ours.rope_scaling:
        rotary: Any = model.rotary_pos_emb
        rope.install(rotary, fields["rotary_base"], config.ours.rope_scaling)
    hooks.install(model, config.ours, vocab_size)
    split = parallel.tensor_parallel > 1
    if config.multi_latent_attention and split and not specs.uses_transformer_engine(config):
        hooks.sum_rotary_key_gradients(model)
    return model.to(torch.cuda.current_device()) if torch.cuda.is_available() else model


def transformer_config(
    fields: Mapping[str, Any], parallel: ParallelConfig, dtype: str, extras: Mapping[str, Any]
) -> Any:
    """Return Megatron's config with our options in it; arguments as for `build`."""
    kind = OurMLAConfig if fields.get("multi_latent_attention") else OurConfig
    known = {field.name for field in dataclasses.fields(kind) if field.init} - {"ours"}
    _check_fields(fields, known)
    ours = {name: value for name, value in fields.items() if name in known}
    ours["activation_func"] = ACTIVATIONS[fields["activation_func"]]
    if window := fields.get("window_size"):
        ours["window_size"] = tuple(window)
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
    gpu = torch.cuda.is_available()
    defaults: dict[str, Any] = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    if fields.get("num_moe_experts"):
        defaults |= {
            # gloo has no all-to-all of uneven parts.
            "moe_token_dispatcher_type": "alltoall" if gpu else "allgather",
            # The loss is the language model's alone unless the user asks for balancing.
            "moe_router_load_balancing_type": "none",
            "moe_router_bias_update_rate": 0.0,
            "moe_router_dtype": "fp32",
            "moe_grouped_gemm": gpu,
        }
    if not gpu:
        ours["use_cpu_initialization"] = True
        fusions = ("bias_dropout_fusion", "bias_activation_fusion", "masked_softmax_fusion")
        ours |= dict.fromkeys((*fusions, "apply_rope_fusion", "persist_layer_norm"), False)
    _check_extras(extras, known, {*ours, *MODEL_FIELDS})
    chosen = {name: fields[name] for name in options.NAMES if name in fields}
    config: Any = kind(**{**defaults, **ours, **extras}, ours=options.Options(**chosen))
    _scale_rotary_attention(config)
    return config


def _scale_rotary_attention(config: Any) -> None:
    """Hand Megatron the factor on cosine and sine that some rotary scalings have.

    Its attention reads three attributes that its config does not declare, and computes from them
    `0.1 ln(factor) + 1`.
    """
    factor = (config.ours.rope_scaling or {}).get("attention_factor", 1.0)
    if factor != 1.0:
        config.yarn_rotary_scaling_factor = math.exp(10 * (factor - 1))
        config.yarn_mscale, config.yarn_mscale_all_dim = 1.0, 0.0


def _check_fields(fields: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(fields) - known - set(MODEL_FIELDS) - options.NAMES)
    if unknown:
        raise ConfigError(
            "The installed Megatron-Core lacks a field that this family needs",
            where=", ".join(unknown),
            expected="a field of TransformerConfig or GPTModel",
            got="no such field",
            fix="install a version of megatron-core that this package supports",
        )


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
