"""A Megatron-LM checkpoint in the old `torch` layout to `torch_dist`, optimizer included.

`torch_dist` does not depend on the layout of the run that wrote it, and Megatron-LM loads it at any
other. No model is built and no process group: a block of a tensor is read from the ranks' files and
written, and in the end read back and compared. A distributed optimizer's state gets the form that
Megatron-LM calls `fully_reshardable`.

Megatron-LM's loss counts the rows that pad its vocabulary, and their number depends on the layout:
the same `--make-vocab-size-divisible-by` times tensor parallelism keeps it.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge import index_file, torch_dist
from megatron_bridge.comparison import same_bits
from megatron_bridge.errors import ConfigError, ProofError
from megatron_bridge.journal import Journal, refuse_a_full, state_of, unfinished
from megatron_bridge.megatron_lm import common_values, extra_states
from megatron_bridge.megatron_lm.arguments import vocabulary_multiple
from megatron_bridge.megatron_lm.folder import LATEST, open_run
from megatron_bridge.megatron_lm.merging import EMBEDDING, Merged
from megatron_bridge.megatron_lm.optimizer import State, merged, read_state
from megatron_bridge.megatron_lm.ranks import Ranks, read
from megatron_bridge.runner import Progress, kept, run, threads
from megatron_bridge.sources.stored import BLOCK_BYTES
from megatron_bridge.transfer import GROUP_BYTES

if TYPE_CHECKING:
    import torch

RELEASE = "release"
VERSION = 1
"""Raised when the same checkpoint must give other bytes."""

Piece = tuple[str, tuple[int, ...], int, int]
"""A tensor's key, the index of one of its slices, and rows of it."""


@dataclass(frozen=True)
class Source:
    """What is read: the model's tensors and the optimizer's, by the keys that they get."""

    ranks: Ranks
    state: State | None
    tensors: dict[str, Merged]

    @classmethod
    def open(cls, folder: Path) -> Source:
        """Open a checkpoint's own folder."""
        ranks = Ranks(folder)
        state = read_state(ranks.files)
        moments = merged(ranks.files, state, ranks.merged) if state else {}
        return cls(ranks, state, ranks.merged | moments)

    def read(self, piece: Piece) -> torch.Tensor:
        """Return some rows, or a tensor that has none."""
        key, index, start, stop = piece
        tail = self.tensors[key].shape[len(index) :]
        return read(self.tensors, self.ranks.folder, key, index, start, stop if tail else None)


def reshard(
    folder: Path, out: Path, progress: Progress | None = None, memory: int | None = None
) -> dict[str, Any]:
    """Write a checkpoint of Megatron-LM anew, so that it loads at any layout.

    Args:
        folder: what was given to `--save`, or one `iter_*` folder in it, in the `torch` format.
        out: a new or empty folder, which Megatron-LM takes as `--load`.
        progress: called as `progress(done, total, unit="tensors")`.
        memory: a ceiling in bytes, by default half of the machine's.

    Returns:
        What was written; `compared`: what of it was read back and is equal bit by bit; `left_out`:
        what `torch_dist` has no place for, and how much of it; `notes`: sentences for the user.

    Raises:
        ConfigError: the checkpoint is in `torch_dist` already, or `out` is not empty or lies in
            `folder`.
        InputError, MappingError: the checkpoint is incomplete, damaged or of an unknown kind.
        ProofError: what was written is not what was read; nothing is kept.
    """
    refuse_a_full(Path(out), Path(folder))
    found = open_run(Path(folder))
    if found.format != "torch":
        raise ConfigError(
            "The checkpoint is in torch_dist already",
            where=found.folder,
            expected="the torch format: mp_rank_* folders",
            got=found.format,
            fix="load it with Megatron-LM as it is, at any layout",
        )
    source = Source.open(found.folder)
    try:
        return _write(source, Path(out), progress, memory)
    finally:
        source.ranks.close()


def _write(
    source: Source, out: Path, progress: Progress | None, memory: int | None
) -> dict[str, Any]:
    folder, iteration = source.ranks.folder, source.ranks.iteration or 0
    files, model = source.ranks.files, source.ranks.merged
    size = sum(math.prod(one.shape) * one.dtype.itemsize for one in source.tensors.values())
    groups = list(_groups(source.tensors))
    identity = {
        "reshard": str(folder),
        "files": state_of(folder.rglob("*.pt")),
        "pieces": repr(groups),
        "version": VERSION,
    }
    common, left_out = common_values.of_run(source.ranks, source.state, iteration)
    with unfinished(out, identity) as (partial, journal):
        # A converted model, without a number of steps, lies in a folder of this name.
        release = folder.name == RELEASE
        place = partial / (RELEASE if release else f"iter_{iteration:07d}")
        place.mkdir(exist_ok=True)
        work = _Work(groups, journal, threads(memory, size), progress, len(source.tensors))
        work.run("write", functools.partial(_write_group, source, place))
        empty = extra_states.keys(files, source.ranks.trees, model)
        torch_dist.write_index(place, _placed(journal, len(groups)), common, empty)
        with _Written(source, place) as written:
            work.run("compare", written.compare)
        latest = RELEASE if release else str(iteration)
        (partial / LATEST).write_text(latest, encoding="utf-8")
    return {
        "iteration": iteration,
        "tensors": len(model),
        "optimizer_tensors": len(source.tensors) - len(model),
        "bytes": size,
        "compared": {"tensors": len(source.tensors), "bytes": size},
        "left_out": left_out,
        "notes": list(_notes(source)),
    }


class _Work:
    """Groups of pieces, gone through once to write them and once to compare them."""

    def __init__(
        self,
        groups: list[list[Piece]],
        journal: Journal,
        count: int,
        progress: Progress | None,
        tensors: int,
    ) -> None:
        self._groups, self._journal, self._threads = groups, journal, count
        self._progress, self._tensors, self._done = progress, tensors, 0

    def run(self, stage: str, function: Callable[[tuple[int, list[Piece]]], Any]) -> None:
        """Do what the journal does not have; it keeps each result."""
        names = [f"{stage}-{number}" for number in range(len(self._groups))]
        todo = [n for n, name in enumerate(names) if self._journal.get(name) is None]
        self._done += len(names) - len(todo)
        # A consumer that fails must end the threads before their files are removed.
        work = kept(function, self._journal, stage)
        with closing(run(work, [(n, self._groups[n]) for n in todo], self._threads)) as results:
            for _ in results:
                self._done += 1
                if self._progress is not None:
                    total = 2 * self._tensors
                    done = total * self._done // (2 * len(names))
                    self._progress(done, total, unit="tensors")


class _Written:
    """What lies in the new files, held against what it was read from; opened by each thread."""

    def __init__(self, source: Source, place: Path) -> None:
        self._source, self._place = source, place
        self._readers: list[torch_dist.Reader] = []
        self._of_thread = threading.local()

    def compare(self, numbered: tuple[int, list[Piece]]) -> int:
        """Return how many pieces of a group are equal bit by bit: all of them.

        Raises:
            ProofError: one differs.
        """
        if not hasattr(self._of_thread, "reader"):
            self._of_thread.reader = torch_dist.Reader(self._place)
            self._readers.append(self._of_thread.reader)
        reader: torch_dist.Reader = self._of_thread.reader
        number, group = numbered
        for piece in group:
            if not self._is_equal(reader, piece):
                key, index, start, stop = piece
                raise ProofError(
                    "What was written differs from what was read",
                    where=f"{key} {list(index)}, rows {start} to {stop}, file {number}",
                    expected=f"what lies in {self._source.ranks.folder}, bit by bit",
                    got="other values; nothing was kept",
                    fix="look for errors of the disk, and run again",
                )
        return len(group)

    def _is_equal(self, reader: torch_dist.Reader, piece: Piece) -> bool:
        key, index, start, stop = piece
        wanted = self._source.read(piece)
        if reader.shapes()[key] != (self._source.tensors[key].shape, wanted.dtype):
            return False
        return same_bits(reader.read(key, index, start, stop if wanted.ndim else None), wanted)

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.close()


def _notes(source: Source) -> Iterator[str]:
    """Say what a user must know before the run goes on."""
    if source.state is None:
        yield "the checkpoint holds no optimizer: a run that goes on begins its moments anew"
    arguments = source.ranks.arguments
    multiple, words = vocabulary_multiple(arguments), source.ranks.merged.get(EMBEDDING)
    if multiple and words:
        yield (
            f"the vocabulary has {words.shape[0]:,} rows, padded to a multiple of {multiple}: keep "
            "--make-vocab-size-divisible-by x --tensor-model-parallel-size at this, because "
            "Megatron-LM's loss counts the padding"
        )


def _groups(tensors: Mapping[str, Merged]) -> Iterator[list[Piece]]:
    """Yield what each file gets."""
    group: list[Piece] = []
    filled = 0
    for key, one in tensors.items():
        for index in itertools.product(*map(range, one.shape[: one.depth])):
            tail = one.shape[one.depth :]
            row = math.prod(tail[1:]) * one.dtype.itemsize
            height = max(1, BLOCK_BYTES // max(1, row))
            rows = tail[0] if tail else 1
            for start in range(0, rows, height):
                stop = min(start + height, rows)
                group.append((key, index, start, stop))
                filled += (stop - start) * row
                if filled >= GROUP_BYTES:
                    yield group
                    group, filled = [], 0
    if group:
        yield group


def _write_group(
    source: Source, place: Path, numbered: tuple[int, list[Piece]]
) -> list[dict[str, Any]]:
    number, group = numbered
    chunks = [_chunk(source, piece) for piece in group]
    placed = torch_dist.write_file(place / f"__{number}_0.distcp", chunks)
    return [block.model_dump() for block in placed]


def _chunk(source: Source, piece: Piece) -> torch_dist.Chunk:
    key, index, start, stop = piece
    one = source.tensors[key]
    tail = one.shape[one.depth :]
    ones = (1,) * len(index)

    def produce() -> torch.Tensor:
        values = source.read(piece)
        return values.reshape(*ones, *values.shape)

    return torch_dist.Chunk(
        key=key,
        offset=(*index, start, *(0 for _ in tail[1:])) if tail else index,
        size=(*ones, stop - start, *tail[1:]) if tail else ones,
        global_size=one.shape,
        dtype=one.dtype,
        produce=produce,
    )


def _placed(journal: Journal, count: int) -> Iterator[index_file.Placed]:
    for number in range(count):
        yield from (index_file.Placed(**block) for block in journal.get(f"write-{number}"))
