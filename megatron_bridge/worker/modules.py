"""Our own parts for Megatron's models, where its parts fall short; they go in by layer specs.

Which model has which is said by `megatron_bridge.options`, carried by `OurConfig`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.tensor_parallel.layers import RowParallelLinear
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from megatron.core.transformer.transformer_config import MLATransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer
from megatron.core.transformer.utils import is_layer_window_attention
from torch import nn

from megatron_bridge.options import Options


@dataclass
class OurConfig(TransformerConfig):
    """Megatron's config with our options; Megatron copies it, so they ride along."""

    ours: Options = field(default_factory=Options)


@dataclass
class OurMLAConfig(MLATransformerConfig):
    """The same for multi-latent attention."""

    ours: Options = field(default_factory=Options)


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last dimension, in float32, for the local layer spec.

    Megatron's wrapper of torch's norms refuses sequence parallelism and zero-centred weights; all
    the first takes is the mark on the parameters, by which `finalize_model_grads` sums their
    gradients over the tensor-parallel ranks.

    Args:
        config: an `OurConfig`; `ours.norm` says whether a LayerNorm has weight and bias.
        hidden_size: size of the last dimension.
        eps: added to the variance.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.size, self.eps = (hidden_size,), eps
        self.is_layer_norm = config.normalization == "LayerNorm"
        self.shift = 1.0 if config.layernorm_zero_centered_gamma else 0.0
        kind = config.ours.norm
        self.weight = None if kind == "plain" else self._parameter(config, 1.0 - self.shift)
        biased = self.is_layer_norm and kind == "affine"
        self.bias = self._parameter(config, 0.0) if biased else None

    def _parameter(self, config: Any, value: float) -> nn.Parameter:
        parameter: Any = nn.Parameter(torch.full(self.size, value, dtype=config.params_dtype))
        parameter.sequence_parallel = config.sequence_parallel
        return parameter  # type: ignore[no-any-return]  # Any, to set Megatron's mark on it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x` normalised, in the dtype of `x`."""
        weight: torch.Tensor | None = self.weight
        if weight is not None and self.shift:
            weight = weight.float() + self.shift  # in bfloat16 the sum would be rounded
        if self.is_layer_norm:
            return nn.functional.layer_norm(x, self.size, weight, self.bias, self.eps)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y if weight is None else weight * y).type_as(x)


class CoreAttention(MegatronModule):
    """Causal attention written out: ALiBi, soft cap, window, key and value sizes that differ.

    It holds the scores of all heads, [batch, heads, sequence, sequence], in memory.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any = None,
        attention_type: str | None = None,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
    ) -> None:
        super().__init__(config=config)
        windowed = is_layer_window_attention(
            config.window_size, config.window_attn_skip_freq, layer_number
        )
        self.window = config.window_size[0] if windowed else None
        scale = softmax_scale if softmax_scale is not None else config.softmax_scale
        self.scale = config.kv_channels**-0.5 if scale is None else scale
        rate = config.attention_dropout if attention_dropout is None else attention_dropout
        self.dropout = nn.Dropout(rate)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Attend; query, key and value are [sequence, batch, heads or KV heads, head].

        Returns:
            [sequence, batch, heads * head].
        """
        heads = query.shape[2]
        if heads != key.shape[2]:
            key, value = (t.repeat_interleave(heads // t.shape[2], 2) for t in (key, value))
        scores = torch.einsum("sbnd,tbnd->bnst", query, key) * self.scale
        if self.config.ours.alibi:
            scores = scores + self._alibi(heads, key.shape[0]).to(scores)
        if cap := self.config.ours.attention_softcap:
            scores = cap * torch.tanh(scores / cap)
        at = torch.arange(scores.shape[-1], device=scores.device)
        distance = at[-scores.shape[-2] :, None] - at[None]
        hidden = distance < 0
        if self.window is not None:
            hidden |= distance > self.window
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores.float(), -1).type_as(value)
        with tensor_parallel.get_cuda_rng_tracker().fork():
            weights = self.dropout(weights)
        return torch.einsum("bnst,tbnd->sbnd", weights, value).flatten(2)

    def _alibi(self, heads: int, keys: int) -> torch.Tensor:
        """Biases of this rank's heads, [1, heads, 1, keys]; softmax does not see a row's shift."""
        first = parallel_state.get_tensor_model_parallel_rank() * heads
        slopes = alibi_slopes(self.config.num_attention_heads)[first : first + heads, None, None]
        if self.config.ours.alibi == "float32":
            return (slopes * torch.arange(keys))[None]
        # Falcon rounds the slope and the product to bfloat16, and scales the sum with the scores.
        return (slopes.bfloat16() * torch.arange(keys).bfloat16()).float()[None] * self.scale

    def sharded_state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Nothing here is kept."""
        return {}


def alibi_slopes(heads: int) -> torch.Tensor:
    """Return the slope of each head, [heads]. Source: https://arxiv.org/abs/2108.12409.

    A count that is no power of two takes the slopes of the next lower power, then every other
    slope of the next higher one.
    """
    lower = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * i / lower) for i in range(1, lower + 1)]
    slopes += [2 ** (-4 * i / lower) for i in range(1, 2 * (heads - lower) + 1, 2)]
    return torch.tensor(slopes)


class ParallelLayer(TransformerLayer):
    """`x + attention(norm x) + mlp(norm x)`, with one norm or two.

    Where the MLP has no norm of its own, it reads the attention's. Under Transformer Engine both
    norms are part of the linear layers behind them.
    """

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        rotary_pos_emb: torch.Tensor | None = None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        """Return the layer's output, [sequence, batch, hidden]."""
        taken = ("rotary_pos_cos", "rotary_pos_sin", "attention_bias", "packed_seq_params")
        options = {name: value for name, value in options.items() if name in taken}
        x = self.input_layernorm(hidden_states)
        shared = isinstance(self.pre_mlp_layernorm, IdentityOp)
        y = x if shared else self.pre_mlp_layernorm(hidden_states)
        attention, attention_bias = self.self_attention(
            x, attention_mask=attention_mask, rotary_pos_emb=rotary_pos_emb, **options
        )
        mlp, mlp_bias = self.mlp(y)
        both = attention + mlp
        for bias in (attention_bias, mlp_bias):
            if bias is not None:
                both = both + bias
        rate = self.hidden_dropout if self.training else 0.0
        return hidden_states + nn.functional.dropout(both, rate), None


class SandwichLayer(TransformerLayer):
    """A norm on the output of the attention and of the MLP, before each is added."""

    def __init__(self, config: Any, submodules: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, submodules, *args, **kwargs)
        self.post_attn_norm = Norm(config, config.hidden_size, config.layernorm_epsilon)
        self.post_mlp_norm = Norm(config, config.hidden_size, config.layernorm_epsilon)
        for name, norm in (("self_attn_bda", self.post_attn_norm), ("mlp_bda", self.post_mlp_norm)):
            setattr(self, name, _norm_first(getattr(self, name), norm))


def _norm_first(bias_dropout_add: Any, norm: nn.Module) -> Any:
    def outer(training: bool, fused: bool) -> Any:
        add = bias_dropout_add(training, fused)

        def inner(output_and_bias: Any, residual: torch.Tensor, rate: float) -> torch.Tensor:
            output, bias = output_and_bias
            output = output if bias is None else output + bias
            result: torch.Tensor = add((norm(output), None), residual, rate)
            return result

        return inner

    return outer


class TwoRotaryLayer(SandwichLayer):
    """A sandwich layer that has a rotary base of its own where it has a window."""

    def __init__(self, config: Any, submodules: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, submodules, *args, **kwargs)
        self.windowed = is_layer_window_attention(
            config.window_size, config.window_attn_skip_freq, self.layer_number
        )

    def forward(self, *args: Any, rotary_pos_emb: Any = None, **kwargs: Any) -> Any:
        """Return the layer's output and context."""
        if self.windowed and rotary_pos_emb is not None:
            rotary_pos_emb = self._angles(rotary_pos_emb)
        return super().forward(*args, rotary_pos_emb=rotary_pos_emb, **kwargs)

    def _angles(self, like: torch.Tensor) -> torch.Tensor:
        length, dim = like.shape[0], like.shape[-1]
        exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=like.device) / dim
        inverse = 1.0 / (self.config.ours.window_rotary_base**exponents)
        angles = torch.outer(torch.arange(length, device=like.device).float(), inverse)
        return torch.cat([angles, angles], -1)[:, None, None, :]


class BiasRow(RowParallelLinear):
    """The attention's output layer with a bias where the MLP has none."""

    def __init__(self, *args: Any, bias: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, bias=True, **kwargs)


class WholeQueryAttention(MLASelfAttention):
    """Latent attention whose query has neither a latent nor a norm, as in DeepSeek-V2-Lite.

    From 0.19 on Megatron takes `qk_layernorm` for a norm on such a query too: it refuses the local
    spec, and changes the engine's.
    """

    def _resolve_qk_norm_config(self, submodules: Any) -> dict[str, Any]:
        return {
            "linear_q_proj": submodules.linear_q_proj,
            "linear_q_up_proj": IdentityOp,
            "linear_kv_up_proj": submodules.linear_kv_up_proj,
            "q_layernorm": IdentityOp,
            "kv_layernorm": submodules.kv_layernorm or IdentityOp,
        }
