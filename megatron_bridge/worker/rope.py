"""Inverse frequencies of rotary positions, for every kind of scaling; runs on the ranks only.

Megatron-Core has Llama 3's constants fixed, and no dynamic or long scaling. A model gets the
frequencies that its `config.json` asks for, in its own rotary module.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding


class ByLength(RotaryEmbedding):
    """Rotary positions whose frequencies depend on the length of the sequence at hand."""

    base: float
    scaling: Mapping[str, Any]
    inv_freq: torch.Tensor

    def get_freqs_non_repeated(self, max_seq_len: int, offset: int = 0) -> torch.Tensor:
        """Return angles, [max_seq_len, dim / 2], as Megatron's own method does."""
        dim = 2 * self.inv_freq.shape[0]
        self.inv_freq = frequencies(self.base, dim, self.scaling, max_seq_len).to(self.inv_freq)
        angles: torch.Tensor = super().get_freqs_non_repeated(max_seq_len, offset)
        return angles


def install(rotary: Any, base: float, scaling: Mapping[str, Any]) -> None:
    """Give a model's rotary module the frequencies of `scaling`; call before the first forward."""
    if scaling["rope_type"] in ("dynamic", "longrope"):
        rotary.__class__ = ByLength
        rotary.base, rotary.scaling = base, scaling
    else:
        dim = 2 * rotary.inv_freq.shape[0]
        # Numbers, also where the model's weights are none (on the meta device).
        with torch.device("cpu"):
            rotary.inv_freq = frequencies(base, dim, scaling, 0).to(rotary.inv_freq)


def frequencies(base: float, dim: int, scaling: Mapping[str, Any], length: int) -> torch.Tensor:
    """Return inverse frequencies, [dim / 2], float32.

    Args:
        base: rotary base (theta).
        dim: rotated part of a head.
        scaling: `Options.rope_scaling`.
        length: tokens of the sequence; only the dynamic and the long scaling look at it.
    """
    compute = {
        "linear": _linear,
        "dynamic": _dynamic,
        "llama3": _llama3,
        "yarn": _yarn,
        "longrope": _longrope,
    }[scaling["rope_type"]]
    return compute(base, dim, scaling, length)


def _plain(base: float, dim: int) -> torch.Tensor:
    inverse: torch.Tensor = torch.reciprocal(_powers(base, dim))
    return inverse


def _powers(base: float, dim: int) -> torch.Tensor:
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return torch.pow(torch.tensor(base), exponents)


def _linear(base: float, dim: int, scaling: Mapping[str, Any], length: int) -> torch.Tensor:
    return _plain(base, dim) / float(scaling["factor"])


def _dynamic(base: float, dim: int, scaling: Mapping[str, Any], length: int) -> torch.Tensor:
    """A base that grows with the sequence beyond the model's length ("dynamic NTK")."""
    factor, longest = scaling["factor"], scaling["max_position_embeddings"]
    stretch = factor * max(length, longest) / longest - (factor - 1)
    return _plain(base * stretch ** (dim / (dim - 2)), dim)


def _llama3(base: float, dim: int, scaling: Mapping[str, Any], length: int) -> torch.Tensor:
    """Long wavelengths stretched, short ones kept, with a ramp between. Source: Llama 3.1."""
    inverse = _plain(base, dim)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelength = 2 * math.pi / inverse
    ratio = scaling["original_max_position_embeddings"] / wavelength
    smooth = (ratio - low) / (high - low)
    between = (1 - smooth) * inverse / scaling["factor"] + smooth * inverse
    stretched = torch.where(ratio < low, inverse / scaling["factor"], between)
    return torch.where(ratio > high, inverse, stretched)


def _yarn(base: float, dim: int, scaling: Mapping[str, Any], length: int) -> torch.Tensor:
    """A ramp over dimensions from kept to stretched. Source: https://arxiv.org/abs/2309.00071."""
    inverse = _plain(base, dim)

    def dimension(rotations: float) -> float:
        turns = scaling["original_max_position_embeddings"] / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(base))

    low, high = dimension(scaling["beta_fast"]), dimension(scaling["beta_slow"])
    if scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low or 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    return inverse / float(scaling["factor"]) * ramp + inverse * (1 - ramp)


def _longrope(base: float, dim: int, scaling: Mapping[str, Any], length: int) -> torch.Tensor:
    """A factor for each dimension, one list for short and one for long sequences."""
    long = length > scaling["original_max_position_embeddings"]
    factors = torch.tensor(scaling["long_factor" if long else "short_factor"], dtype=torch.float32)
    inverse: torch.Tensor = torch.reciprocal(factors * _powers(base, dim))
    return inverse
