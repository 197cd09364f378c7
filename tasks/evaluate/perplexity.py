"""Loss in Hugging Face's own model: the reference that Megatron's is compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from megatron_bridge.reference import token_losses

__all__ = ["mean", "token_losses"]


def mean(losses: Sequence[Sequence[float]]) -> float:
    """The mean over all ids, summed without rounding (in float64)."""
    return math.fsum(chain.from_iterable(losses)) / sum(map(len, losses))
