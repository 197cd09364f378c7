"""What a model does at its ends, beyond Megatron's GPT model: hooks put on after it was built.

`GPTModel` builds its embedding and its output layer itself, not by a spec. With pipeline stages the
embedding is on the first and the output layer on the last.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.mappings import (
    gather_from_tensor_model_parallel_region,
    scatter_to_sequence_parallel_region,
)
from torch import nn

from megatron_bridge.options import Options
from megatron_bridge.worker.modules import Norm


def install(model: GPTModel, options: Options, vocab_size: int) -> None:
    """Put on the hooks that the options ask for, and the one that hides padded tokens."""
    if parallel_state.is_pipeline_first_stage():
        _on_embedding(model, options)
    if parallel_state.is_pipeline_last_stage():
        _on_output(model, options)
        _hide_padding(model, vocab_size)


def sum_rotary_key_gradients(model: GPTModel) -> None:
    """Give latent attention's rotary key its whole gradient under tensor parallelism.

    All heads share the key. Megatron's local spec splits the projection that makes it over the
    ranks, and never sums the gradient that comes back (0.16.1: wrong by 10 to 44 %, with the logits
    exact). Gathered and scattered along the sequence here, Megatron's own mappings sum it; that
    takes sequence parallelism. Transformer Engine's spec needs no hook.
    """
    for layer in model.decoder.layers:
        layer.self_attention.linear_kv_down_proj.register_forward_hook(
            lambda module, inputs, outputs: (
                scatter_to_sequence_parallel_region(
                    gather_from_tensor_model_parallel_region(outputs[0])
                ),
                outputs[1],
            )
        )


def _on_embedding(model: GPTModel, options: Options) -> None:
    embedding: Any = model.embedding
    if offset := options.position_offset:
        embedding.register_forward_pre_hook(
            lambda module, args, kwargs: (
                args,
                {**kwargs, "position_ids": kwargs["position_ids"] + offset},
            ),
            with_kwargs=True,
        )
    if options.embedding_norm:
        config: Any = model.config
        embedding.norm = Norm(config, config.hidden_size, config.layernorm_epsilon)
        embedding.register_forward_hook(lambda module, inputs, output: module.norm(output))
    if scale := options.embedding_scale:
        embedding.register_forward_hook(
            # Gemma's factor is rounded to the model's number format: 55.5 for 3072 in bfloat16.
            lambda module, inputs, output: output * torch.tensor(scale, dtype=output.dtype)
        )


def _on_output(model: GPTModel, options: Options) -> None:
    output: Any = model.output_layer
    if options.normalized_output:
        output.register_forward_pre_hook(_normalize_rows, with_kwargs=True)
    if scale := options.output_scale:
        output.register_forward_hook(
            lambda module, inputs, outputs: (outputs[0] * scale, outputs[1])
        )
    if cap := options.output_softcap:
        output.register_forward_hook(
            lambda module, inputs, outputs: (cap * torch.tanh(outputs[0] / cap), outputs[1])
        )


def _normalize_rows(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    weight = kwargs.get("weight")
    weight = module.weight if weight is None else weight
    return args, {**kwargs, "weight": nn.functional.normalize(weight)}


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
