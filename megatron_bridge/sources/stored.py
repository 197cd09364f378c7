"""A tensor where it lies: its rows are read when they are asked for."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from megatron_bridge.sources.ranges import Ranges

if TYPE_CHECKING:
    import torch


BLOCK_BYTES = 16 * 2**20
"""Tensors larger than this pass in blocks of rows."""
COMPUTED_BYTES = 4 * 2**20
"""Computed rows pass in steps of this many bytes in float32: there are several copies of a step."""


class Readable(Protocol):
    """A tensor that gives any of its rows without the others."""

    @property
    def where(self) -> str:
        """The file it lies in, for errors."""

    @property
    def dtype(self) -> torch.dtype:
        """The number format that `read` gives."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""

    @property
    def stored_as(self) -> str:
        """The number format that it lies in; the name of `dtype` where nothing is computed."""

    def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows `start` to `stop`, [stop - start, ...]; a tensor without rows whole."""


@dataclass(frozen=True)
class Stored:
    """A row-major tensor at an offset of a file."""

    file: Ranges
    offset: int
    """Of the first element, in bytes."""
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def where(self) -> str:
        """The file's name."""
        return self.file.name

    @property
    def stored_as(self) -> str:
        """The number format's name."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def row_bytes(self) -> int:
        """Size of one slice of the first dimension, in bytes."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def at(self, index: tuple[int, ...]) -> Stored:
        """Return the slice at `index` of the first dimensions."""
        place, shape = self.offset, self.shape
        for i in index:
            shape = shape[1:]
            place += i * math.prod(shape) * self.dtype.itemsize
        return replace(self, offset=place, shape=shape)

    def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows `start` to `stop`, [stop - start, ...]; a tensor without rows whole."""
        import torch

        shape, place = self.shape, self.offset
        if shape:
            stop = last(shape, start, stop)
            shape, place = (stop - start, *shape[1:]), place + start * self.row_bytes
        tensor = torch.empty(shape, dtype=self.dtype)
        if tensor.numel():
            self.file.read_into(place, raw(tensor))
        return tensor


class Computed(ABC):
    """A tensor whose rows are computed when they are read: read at once, computed in steps."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = dtype, shape

    @abstractmethod
    def fetch(self, start: int, stop: int) -> Callable[[int, int], torch.Tensor]:
        """Read what rows `start` to `stop` are made of; return what makes any of them."""

    def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows `start` to `stop`, [stop - start, ...]."""
        import torch

        stop = last(self.shape, start, stop)
        tensor = torch.empty((stop - start, *self.shape[1:]), dtype=self.dtype)
        rows = self.fetch(start, stop)
        height = max(1, COMPUTED_BYTES // max(1, 4 * math.prod(self.shape[1:])))
        for first in range(start, stop, height):
            end = min(first + height, stop)
            tensor[first - start : end - start] = rows(first, end)
        return tensor


def last(shape: tuple[int, ...], start: int, stop: int | None) -> int:
    """Return `stop`, or the number of rows for None; raise IndexError for rows beyond."""
    stop = shape[0] if stop is None else stop
    if not 0 <= start <= stop <= shape[0]:
        raise IndexError(f"rows {start} to {stop} of {shape[0]}")
    return stop


def blocks(tensor: Readable) -> Iterator[tuple[int, int]]:
    """Yield first and last row of blocks that make up a tensor with rows."""
    row_bytes = math.prod(tensor.shape[1:]) * tensor.dtype.itemsize
    height = max(1, BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, tensor.shape[0], height):
        yield start, min(start + height, tensor.shape[0])


def fill(tensor: Readable, start: int, target: torch.Tensor) -> None:
    """Put rows from `start` on into a contiguous `target`, in its number format."""
    if type(tensor) is Stored and tensor.dtype == target.dtype:
        if target.numel():
            tensor.file.read_into(tensor.offset + start * tensor.row_bytes, raw(target))
    else:
        target.copy_(tensor.read(start, start + len(target)))


def raw(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, writable."""
    import torch

    view: memoryview = tensor.flatten().view(torch.uint8).numpy().data
    return view
