"""Both sides of a conversion, opened: pieces of each made of the other's."""

from __future__ import annotations

import functools
import json
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from megatron_bridge import hf
from megatron_bridge.blocks import PADDING, RowMap
from megatron_bridge.comparison import Again, Direct, Noted, Notes
from megatron_bridge.config import DType
from megatron_bridge.conversion import Conversion, cast
from megatron_bridge.errors import MappingError, PipelineError
from megatron_bridge.mapping import Bound
from megatron_bridge.megatron_lm import folder as megatron_side
from megatron_bridge.megatron_lm import view
from megatron_bridge.sources.source import Source
from megatron_bridge.sources.stored import fill
from megatron_bridge.tensors import Tensors

if TYPE_CHECKING:
    import torch

WHOLE = -1
"""A piece's part when it is all parts at once."""


@dataclass(frozen=True)
class Piece:
    """One Megatron tensor, or rows of it, or rows of one Hugging Face tensor it is made of."""

    bound: int
    part: int
    start: int
    stop: int


T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """What it takes to open both sides: paths and choices, no tensors."""

    config: Path
    """The folder of the Hugging Face side's `config.json`."""
    source: Source | None = None
    """The Hugging Face side, where it is read."""
    checkpoint: Path | None = None
    """The Megatron side, where it is read."""
    hf_prefix: bool = True
    native: bool = False
    dtype: DType | None = None
    noted: Path | None = None
    """Digests of what was read of the Hugging Face side, which is not read again."""


class Side:
    """A job, opened."""

    def __init__(self, job: Job) -> None:
        self.job = job
        model = Conversion.of_folder(job.config, job.hf_prefix)
        self._unpadded = model = model.as_native() if job.native else model
        try:
            self.model = model.padded_as(self.reader) if job.checkpoint else model
        except PipelineError:
            self.close()
            raise
        self._maps: dict[tuple[Any, ...], RowMap] = {}
        is_elsewhere = job.source is not None and job.source.address is not None
        self.notes = Notes() if is_elsewhere and job.checkpoint is None else None
        """Of what is read to be written, where it is not read again to be compared."""

    @functools.cached_property
    def weights(self) -> hf.Weights:
        """The Hugging Face side."""
        return hf.Weights(_given(self.job.source))

    @functools.cached_property
    def reader(self) -> Tensors:
        """The Megatron side."""
        raw = megatron_side.tensors(_given(self.job.checkpoint))
        return view.seen(raw, self._unpadded.bounds, self._unpadded.shape)

    @functools.cached_property
    def _noted(self) -> Noted:
        found: Noted = json.loads(_given(self.job.noted).read_bytes())
        return found

    @property
    def fetched(self) -> int:
        """Bytes of the Hugging Face side that came from elsewhere."""
        return self.weights.fetched if "weights" in self.__dict__ else 0

    def original(self, name: str) -> Direct | Again:
        """Return what a Hugging Face tensor made of the checkpoint is compared with."""
        if self.job.noted is None:
            return Direct(self.weights.stored(name))
        return Again(self._noted.get(name))

    @functools.cached_property
    def _widest(self) -> dict[str, torch.dtype]:
        """The number format of each Megatron tensor: one that holds all that lie in it."""
        import torch

        found: dict[str, torch.dtype] = {}
        for bound in self.model.bounds:
            kinds = [self.weights.spec(name).dtype for name in bound.hf]
            if bound.slot.key in found:
                kinds.append(found[bound.slot.key])
            found[bound.slot.key] = functools.reduce(torch.promote_types, kinds)
        return found

    def packed_spec(self, bound: Bound) -> tuple[tuple[int, ...], torch.dtype]:
        """Return shape and number format that an import gives a Megatron tensor.

        Raises:
            MappingError: the weights do not fit `config.json`.
        """
        import torch

        shapes = [self.weights.spec(name).shape for name in bound.hf]
        packed = self.model.pack(bound, [torch.empty(s, device="meta") for s in shapes])
        fitting = tuple(map(self.model.shape.size, bound.row.sizes))
        if packed.shape != fitting:
            raise MappingError(
                "The weights do not fit config.json",
                where=", ".join(bound.hf),
                expected=f"together {list(fitting)} ({' x '.join(bound.row.sizes)})",
                got=list(packed.shape),
                fix="use the config.json that belongs to the weights",
            )
        return fitting, cast(bound, self.job.dtype, self._widest[bound.slot.key])

    def stored_spec(self, bound: Bound) -> tuple[tuple[int, ...], torch.dtype]:
        """Return shape and number format of a Megatron tensor of the checkpoint."""
        shape, dtype = self.reader.shapes()[bound.slot.key]
        return shape[len(bound.slot.index) :], dtype

    def check_shapes(self) -> None:
        """Refuse a checkpoint whose tensors are not of the sizes that `config.json` says.

        Raises:
            MappingError: one is not.
        """
        for bound in self.model.bounds:
            shape, _ = self.stored_spec(bound)
            fitting = tuple(map(self.model.shape.size, bound.row.sizes))
            if shape != fitting:
                raise MappingError(
                    "The checkpoint does not fit config.json",
                    where=f"{self.reader.folder}, {bound.slot}",
                    expected=f"{list(fitting)} ({' x '.join(bound.row.sizes)})",
                    got=list(shape),
                    fix="use the config.json that belongs to the checkpoint",
                )

    def part_specs(self, bound: Bound) -> list[hf.TensorSpec]:
        """Return what an export makes of a Megatron tensor, without reading data."""
        import torch

        shape, stored = self.stored_spec(bound)
        parts = self.model.unpack(bound, torch.empty(shape, dtype=stored, device="meta"))
        dtype = cast(bound, self.job.dtype, stored)
        return [
            hf.TensorSpec(name, dtype, tuple(part.shape))
            for name, part in zip(bound.hf, parts, strict=True)
        ]

    @property
    def total_bytes(self) -> int:
        """Size of the Megatron side's weights."""
        specs = (self.stored_spec(bound) for bound in self.model.bounds)
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in specs)

    def packed(self, piece: Piece) -> torch.Tensor:
        """Return a piece of a Megatron tensor, made of the Hugging Face side's."""
        import torch

        bound = self.model.bounds[piece.bound]
        _, dtype = self.packed_spec(bound)
        stored = [self.weights.stored(name) for name in bound.hf]
        if piece.part == WHOLE:
            return self.model.pack(bound, [self._read(name, dtype).to(dtype) for name in bound.hf])
        block = torch.empty((piece.stop - piece.start, *stored[0].shape[1:]), dtype=dtype)
        for run in self._map(bound, stored).of_whole(piece.start, piece.stop):
            target = block[run.whole_start - piece.start :][: run.length]
            if run.part == PADDING:
                target.zero_()
            elif self.notes is None:
                fill(stored[run.part], run.part_start, target)
            else:
                end = run.part_start + run.length
                target.copy_(self._read(bound.hf[run.part], dtype, run.part_start, end))
        return block

    def _read(
        self, name: str, dtype: torch.dtype, start: int = 0, stop: int | None = None
    ) -> torch.Tensor:
        """Rows of a Hugging Face tensor, noted where they become `dtype` and are not read again."""
        values = self.weights.stored(name).read(start, stop)
        if self.notes is not None:
            self.notes.add(name, start, values, dtype)
        return values

    def unpacked(self, piece: Piece) -> Iterator[tuple[str, int, torch.Tensor]]:
        """Yield Hugging Face tensors, or rows of one, made of a piece of the Megatron side.

        Yields:
            Name, first row and values.
        """
        import torch

        bound = self.model.bounds[piece.bound]
        key, index = bound.slot.key, bound.slot.index
        if piece.part == WHOLE:
            parts = self.model.unpack(bound, self.reader.read(key, index))
            for name, part in zip(bound.hf, parts, strict=True):
                yield name, 0, part
            return
        runs = self._map(bound, self.part_specs(bound)).of_part(piece.part, piece.start, piece.stop)
        rows = [
            self.reader.read(key, index, run.whole_start, run.whole_start + run.length)
            for run in runs
        ]
        yield bound.hf[piece.part], piece.start, rows[0] if len(rows) == 1 else torch.cat(rows)

    def has_padding(self, bound: Bound) -> bool:
        """True where the Megatron tensor holds values in the padding of the vocabulary."""
        shape, _ = self.stored_spec(bound)
        key, index, vocab = bound.slot.key, bound.slot.index, self.model.shape.vocab
        return bool(self.reader.read(key, index, vocab, shape[0]).any())

    def close(self) -> None:
        """Close the files of both sides."""
        for name in ("weights", "reader"):
            if opened := self.__dict__.pop(name, None):
                opened.close()

    def _map(self, bound: Bound, parts: Sequence[Any]) -> RowMap:
        rows = [part.shape[0] for part in parts]
        key = (bound.row.layout, *rows)
        if key not in self._maps:
            self._maps[key] = RowMap(bound.row.layout, rows, self.model.shape)
        return self._maps[key]


class Sides:
    """A job, opened for all threads that work on it, and closed after them.

    They share files on this disk, whose number is limited; a source elsewhere is read by each for
    itself, with its own account of what it read.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._opened: list[Side] = []
        self._of_thread = threading.local()
        is_elsewhere = job.source is not None and job.source.address is not None
        self._shared = None if is_elsewhere and job.noted is None else self._open()

    def mine(self) -> Side:
        """Return this thread's view of the job."""
        if self._shared is not None:
            return self._shared
        if not hasattr(self._of_thread, "side"):
            self._of_thread.side = self._open()
        found: Side = self._of_thread.side
        return found

    def _open(self) -> Side:
        one = Side(self.job)
        self._opened.append(one)
        return one

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._opened:
            one.close()


def _given(side: T | None) -> T:
    if side is None:
        raise ValueError("this side of the job was not named")
    return side
