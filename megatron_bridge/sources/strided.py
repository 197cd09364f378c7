"""A tensor that does not lie row by row: a view of another one, such as some of its columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from megatron_bridge.sources.stored import Stored, last, raw

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Strided(Stored):
    """A tensor at an offset of a file, its elements at steps of their own.

    What lies between the first and the last element of the rows asked for is read, too.
    """

    strides: tuple[int, ...]
    """From one element to the next along each dimension, in elements."""

    def at(self, index: tuple[int, ...]) -> Strided:
        """Return the slice at `index` of the first dimensions."""
        steps = sum(i * step for i, step in zip(index, self.strides, strict=False))
        return replace(
            self,
            offset=self.offset + steps * self.dtype.itemsize,
            shape=self.shape[len(index) :],
            strides=self.strides[len(index) :],
        )

    def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows `start` to `stop`, [stop - start, ...]; a tensor without rows whole."""
        import torch

        if not self.shape:
            return super().read()
        shape = (last(self.shape, start, stop) - start, *self.shape[1:])
        if 0 in shape:
            return torch.empty(shape, dtype=self.dtype)
        span = sum((n - 1) * step for n, step in zip(shape, self.strides, strict=True)) + 1
        around = torch.empty(span, dtype=self.dtype)
        self.file.read_into(
            self.offset + start * self.strides[0] * self.dtype.itemsize, raw(around)
        )
        return around.as_strided(shape, self.strides).contiguous()
