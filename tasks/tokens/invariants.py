"""What must hold in every indexed dataset, read in pieces: memory does not grow with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import ProofError
from tasks.tokens.indexed import PIECE, Index, open_index, require_size


def sequences_of(index: Index) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
    """Lengths and byte offsets, of which one must follow from the other."""
    at = 0
    for lengths, offsets in zip(index.lengths(), index.offsets(), strict=True):
        wanted = np.empty(len(lengths) + 1, np.int64)
        wanted[0] = at
        np.cumsum(lengths, dtype=np.int64, out=wanted[1:])
        wanted[1:] *= index.dtype.itemsize
        wanted[1:] += at
        at = int(wanted[-1])
        wanted = wanted[:-1]
        wrong = np.flatnonzero((lengths < 0) | (offsets != wanted))
        if len(wrong):
            raise ProofError(
                "An index contradicts itself", where=index.path,
                expected=f"a sequence of 0 or more ids that begins at byte {wanted[wrong[0]]}",
                got=f"{lengths[wrong[0]]} ids at byte {offsets[wrong[0]]}",
            )  # fmt: skip
        yield lengths, offsets


def ends_of(index: Index) -> Iterator[NDArray[np.int64]]:
    """Document ends without the leading zero; they begin at 0, never fall, and end at the last."""
    last = 0
    first = True
    for ends in index.ends():
        steps = np.diff(ends, prepend=last)
        if (first and ends[0]) or (steps < 0).any():
            raise _wrong_ends(index, "a document that ends before it begins")
        last = int(ends[-1])
        yield ends[1:] if first else ends
        first = False
    if last != index.sequences:
        raise _wrong_ends(index, f"{last} sequences in its documents")


def _wrong_ends(index: Index, got: str) -> ProofError:
    return ProofError(
        "An index contradicts itself", where=index.path,
        expected=f"document ends that rise from 0 to {index.sequences}", got=got,
    )  # fmt: skip


@dataclass(frozen=True)
class Dataset:
    """A dataset whose index is in memory, and whose ids are in a memory map.

    Attributes:
        values: ids, or what else stands for each token, [tokens].
        lengths: of the sequences, [sequences].
        documents: the first sequence of each, and the number of all, [documents + 1].
    """

    values: NDArray[Any]
    lengths: NDArray[np.int32]
    documents: NDArray[np.int64]


def read(prefix: Path) -> Dataset:
    """Open a dataset that is whole.

    Raises:
        InputError: see `open_index`.
        ProofError: see `check`.
    """
    index = open_index(prefix)
    tokens = check(index)
    values = np.memmap(index.data, index.dtype, "r") if tokens else np.empty(0, index.dtype)
    lengths = np.concatenate([*index.lengths(), np.empty(0, np.int32)])
    return Dataset(values, lengths, np.concatenate(list(index.ends())))


def check(index: Index) -> int:
    """Hold all parts of an index against one another and against `.bin`; returns the tokens.

    Raises:
        ProofError: something contradicts something.
    """
    tokens = sum(int(lengths.sum(dtype=np.int64)) for lengths, _ in sequences_of(index))
    require_size(index, tokens)
    deque(ends_of(index), 0)
    return tokens


def last_ids(index: Index) -> set[int]:
    """The ids in which sequences end."""
    found: set[int] = set()
    size = index.dtype.itemsize
    with open(index.data, "rb") as file:
        for lengths, offsets in zip(index.lengths(), index.offsets(), strict=True):
            ends, at = offsets // size + lengths - 1, 0
            while at < len(ends):
                first = int(ends[at])
                stop = int(np.searchsorted(ends, first + PIECE))
                file.seek(first * size)
                window = np.fromfile(file, index.dtype, int(ends[stop - 1]) + 1 - first)
                found.update(np.unique(window[ends[at:stop] - first]).tolist())
                at = stop
    return found
