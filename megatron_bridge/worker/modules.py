"""Our own parts for Megatron's models, where its parts for the local layer spec fall short."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last dimension, in float32, for the local layer spec.

    Megatron's wrapper of torch's norms refuses sequence parallelism; all it takes is the mark on
    the parameters, by which `finalize_model_grads` sums their gradients over the tensor-parallel
    ranks.

    Args:
        config: Megatron's `TransformerConfig`.
        hidden_size: size of the last dimension.
        eps: added to the variance.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.bias = (
            nn.Parameter(torch.zeros(hidden_size, dtype=config.params_dtype))
            if config.normalization == "LayerNorm"
            else None
        )
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x` normalised, in the dtype of `x`."""
        if self.bias is not None:
            return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * y).type_as(x)
