"""Rows of a Megatron tensor as runs of rows of Hugging Face tensors, and the reverse.

Almost every layout only moves rows. Which row goes where is found by packing row numbers with the
layout itself, so a tensor of any size passes in blocks, and there is no second definition.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megatron_bridge.layouts import Layout, ModelShape

PADDING = -1


@dataclass(frozen=True)
class Run:
    """Consecutive rows on one side that are consecutive on the other."""

    part: int
    """The Hugging Face tensor's place in the row of the mapping, or `PADDING`."""
    part_start: int
    whole_start: int
    length: int


class RowMap:
    """Where the rows of one Megatron tensor lie in the Hugging Face tensors it is made of."""

    def __init__(self, layout: Layout, part_rows: Sequence[int], shape: ModelShape) -> None:
        import torch

        ends = torch.tensor([0, *part_rows]).cumsum(0).tolist()
        # Counted from 1: what a layout pads with is zero.
        numbers = [torch.arange(a + 1, b + 1) for a, b in itertools.pairwise(ends)]
        packed = layout.pack(numbers, shape) - 1
        self.rows = len(packed)
        owners = torch.bucketize(packed, torch.tensor(ends[1:]), right=True)
        # A run ends where the owner changes or the next row is not the next one there.
        breaks = (packed[1:] != packed[:-1] + 1) | (owners[1:] != owners[:-1])
        padded = packed == PADDING
        breaks &= ~(padded[1:] & padded[:-1])
        starts = [0, *(torch.nonzero(breaks).flatten() + 1).tolist()] if self.rows else []
        self._runs = []
        for start, stop in zip(starts, [*starts[1:], self.rows], strict=True):
            row = int(packed[start])
            part = PADDING if row == PADDING else int(owners[start])
            first = 0 if part == PADDING else row - ends[part]
            self._runs.append(Run(part, first, start, stop - start))

    def of_whole(self, start: int, stop: int) -> Iterator[Run]:
        """Yield the runs that make up Megatron rows `start` to `stop`, in their order."""
        for run in self._runs:
            low = max(start, run.whole_start)
            high = min(stop, run.whole_start + run.length)
            if low < high:
                moved = low - run.whole_start
                yield Run(run.part, run.part_start + moved, low, high - low)

    def of_part(self, part: int, start: int, stop: int) -> Iterator[Run]:
        """Yield the runs that make up rows `start` to `stop` of one Hugging Face tensor."""
        mine = sorted((r for r in self._runs if r.part == part), key=lambda run: run.part_start)
        for run in mine:
            low = max(start, run.part_start)
            high = min(stop, run.part_start + run.length)
            if low < high:
                moved = low - run.part_start
                yield Run(part, low, run.whole_start + moved, high - low)
