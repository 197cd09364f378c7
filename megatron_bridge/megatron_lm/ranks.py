"""The old `torch` layout of Megatron-LM, one file a rank, read as one set of global tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge.comparison import same_bits
from megatron_bridge.errors import InputError
from megatron_bridge.megatron_lm.merging import Block, Cell, Merged, merge
from megatron_bridge.megatron_lm.naming import chunks
from megatron_bridge.megatron_lm.rank_files import RankFiles, open_files
from megatron_bridge.sources.stored import fill, last
from megatron_bridge.tensors import Shape

if TYPE_CHECKING:
    import torch


class Ranks:
    """A checkpoint's tensors by Megatron's keys; only what is asked for is in memory.

    Args:
        folder: the checkpoint's own folder, with `mp_rank_*` in it.

    Raises:
        InputError: a rank's folder is missing, a file is damaged, or parts do not fit together.
        MappingError: a tensor that is not known.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.files: RankFiles = open_files(self.folder)
        self.trees = {rank: chunks(tree) for rank, tree in self.files.trees.items()}
        self.merged: dict[str, Merged] = merge(self.files, self.trees)
        self.extra_states = sum(
            "_extra_state" in name
            for parts in self.trees.values()
            for part in parts
            for name in part
        )
        """How many of Transformer Engine's extra states were left out."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The run's arguments by name; enums are `inert.Named`."""
        return self.files.arguments

    @property
    def iteration(self) -> int | None:
        """How many steps the run had done."""
        named = re.fullmatch(r"iter_(\d+)", self.folder.name)
        found = self.files.first().get("iteration", int(named[1]) if named else None)
        return None if found is None else int(found)

    def shapes(self) -> dict[str, Shape]:
        """Return global shape and dtype of every tensor by key."""
        return {key: (one.shape, one.dtype) for key, one in self.merged.items()}

    def read(
        self, key: str, index: tuple[int, ...] = (), start: int = 0, stop: int | None = None
    ) -> torch.Tensor:
        """Return the slice of `key` at `index` of its first dimensions, or rows of it.

        Raises:
            InputError: ranks that must have the same values have not.
        """
        return read(self.merged, self.folder, key, index, start, stop)

    def close(self) -> None:
        """Nothing is open between reads."""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(
    merged: Mapping[str, Merged],
    folder: Path,
    key: str,
    index: tuple[int, ...] = (),
    start: int = 0,
    stop: int | None = None,
) -> torch.Tensor:
    """Return the slice of a global tensor at `index` of its first dimensions, or rows of it.

    Raises:
        InputError: ranks that must have the same values have not.
    """
    import torch

    one = merged[key]
    if len(index) < one.depth:
        stop = one.shape[len(index)] if stop is None else stop
        if start >= stop:
            return torch.empty((0, *one.shape[len(index) + 1 :]), dtype=one.dtype)
        return torch.stack([read(merged, folder, key, (*index, i)) for i in range(start, stop)])
    cell, inner = one.cells[index[: one.depth]], index[one.depth :]
    if not inner:
        return _rows(cell, f"{folder}, {key} {list(index)}", start, stop)
    row = _rows(cell, f"{folder}, {key} {list(index)}", inner[0], inner[0] + 1)[0]
    row = row[inner[1:]]
    return row[start:stop] if row.ndim else row


def _rows(cell: Cell, where: str, start: int, stop: int | None) -> torch.Tensor:
    if cell.shape:
        stop = last(cell.shape, start, stop)
    target = _filled(cell, cell.blocks, start, stop)
    for copy in cell.copies:
        if not same_bits(_filled(cell, copy, start, stop), target):
            raise InputError(
                "Ranks that must have the same values of a tensor have not",
                where=where,
                expected=f"what is in {_files(cell.blocks)}",
                got=f"other values in {_files(copy)}",
                fix="the run's ranks went apart, or files of two runs were mixed; take another "
                "checkpoint",
            )
    return target


def _filled(cell: Cell, blocks: list[Block], start: int, stop: int | None) -> torch.Tensor:
    import torch

    if stop is None:
        return blocks[0].source.read()
    target = torch.empty((stop - start, *cell.shape[1:]), dtype=cell.dtype)
    for block in blocks:
        low, high = max(start, block.row), min(stop, block.row + block.rows)
        if low < high:
            source, first = block.source, low - block.row + block.first
            place = target[low - start : high - start]
            if source.shape[1:] == place.shape[1:]:
                fill(source, first, place)
            else:
                part = source.read(first, first + len(place))
                place[:, block.column : block.column + part.shape[1]] = part
    return target


def _files(blocks: list[Block]) -> str:
    return ", ".join(sorted({block.source.where for block in blocks}))
