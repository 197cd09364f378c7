"""The Megatron side as conversions read it, whatever its format: tensors by global keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

Shape = tuple[tuple[int, ...], "torch.dtype"]
"""Global shape and number format."""


class Tensors(Protocol):
    """A checkpoint's tensors; only what is asked for is in memory."""

    @property
    def folder(self) -> Path:
        """Where the checkpoint lies."""

    def shapes(self) -> dict[str, Shape]:
        """Return global shape and dtype of every tensor by key."""

    def read(
        self, key: str, index: tuple[int, ...] = (), start: int = 0, stop: int | None = None
    ) -> torch.Tensor:
        """Return the slice of `key` at `index` of its first dimensions, or rows of it."""

    def close(self) -> None:
        """Close the files."""
