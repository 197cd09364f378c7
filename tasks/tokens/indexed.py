"""Megatron's indexed dataset: a `.bin` of token ids and an `.idx` of where documents begin.

Byte for byte what `megatron/core/datasets/indexed_dataset.py` writes, with numpy alone:
`.idx` = magic, version 1 (u64), number format (u8), number of sequences (u64) and of document ends
(u64), lengths (i32), byte offsets (i64), document ends (i64), and in multimodal data modes (i8).
A document is zero or more sequences; in all but sentence-split datasets it is one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import InputError, ProofError

Ids = NDArray[Any]
DType = np.dtype[Any]

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<QBQQ")
START = len(MAGIC) + HEADER.size
"""Bytes before the lengths."""

CODES: dict[int, DType] = {
    1: np.dtype("<u1"), 2: np.dtype("<i1"), 3: np.dtype("<i2"), 4: np.dtype("<i4"),
    5: np.dtype("<i8"), 6: np.dtype("<f8"), 7: np.dtype("<f4"), 8: np.dtype("<u2"),
}  # fmt: skip
"""Megatron's numbers for number formats."""

_SMALL_VOCABULARY = 65_500
PIECE = 1 << 20
"""Entries read at a time."""


def best_dtype(vocab_size: int) -> DType:
    """uint16 where Megatron's `DType.optimal_dtype` takes it, else int32."""
    return CODES[code_of(vocab_size)]


def code_of(vocab_size: int) -> int:
    """Megatron's number for `best_dtype`."""
    return 8 if vocab_size < _SMALL_VOCABULARY else 4


def header(dtype: DType, sequences: int, documents: int) -> bytes:
    """The first bytes of an index."""
    code = next(code for code, known in CODES.items() if known == dtype)
    return MAGIC + HEADER.pack(1, code, sequences, documents + 1)


class Writer:
    """Writes one dataset; the index when it is left as a context. 12 bytes a document in memory.

    Args:
        prefix: path without `.bin` and `.idx`.
        dtype: see `best_dtype`.
    """

    def __init__(self, prefix: Path, dtype: DType) -> None:
        self.documents = self.sequences = self.tokens = 0
        self._prefix, self._dtype = prefix, dtype
        self._lengths: list[NDArray[np.int32]] = []
        self._counts: list[NDArray[np.int64]] = []
        self._bin = open(f"{prefix}.bin", "wb")

    def add(
        self, ids: Ids, lengths: NDArray[np.int32], counts: NDArray[np.int64] | None = None
    ) -> None:
        """Add documents.

        Args:
            ids: their ids one after the other, [sum of lengths].
            lengths: ids of each sequence, [sequences].
            counts: sequences of each document, [documents]; one each without it.
        """
        self._bin.write(np.ascontiguousarray(ids, self._dtype).data)
        counts = np.ones(len(lengths), np.int64) if counts is None else counts
        self._lengths.append(lengths)
        self._counts.append(counts)
        self.documents += len(counts)
        self.sequences += len(lengths)
        self.tokens += len(ids)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bin.close()
        if kind is None:
            self._write_index()

    def _write_index(self) -> None:
        lengths = np.concatenate([*self._lengths, np.empty(0, np.int32)]).astype("<i4")
        offsets = np.zeros(len(lengths), "<i8")
        np.cumsum(lengths[:-1], out=offsets[1:], dtype="<i8")
        ends = np.zeros(self.documents + 1, "<i8")
        np.cumsum(np.concatenate([*self._counts, ends[:0]]), out=ends[1:])
        with open(f"{self._prefix}.idx", "wb") as file:
            file.write(header(self._dtype, len(lengths), self.documents))
            file.write(lengths.data)
            file.write((offsets * self._dtype.itemsize).data)
            file.write(ends.data)


@dataclass(frozen=True)
class Index:
    """An index whose parts are read in pieces: memory does not grow with it; see `open_index`.

    Attributes:
        prefix: path without `.bin` and `.idx`.
        dtype: of an id.
        sequences: how many.
        documents: how many.
        multimodal: whether each sequence has a mode.
    """

    prefix: Path
    dtype: DType
    sequences: int
    documents: int
    multimodal: bool

    @property
    def data(self) -> Path:
        """The file of the ids."""
        return Path(f"{self.prefix}.bin")

    @property
    def path(self) -> Path:
        """The file of the index."""
        return Path(f"{self.prefix}.idx")

    def lengths(self) -> Iterator[NDArray[np.int32]]:
        """Ids of each sequence."""
        return self._part("<i4", START, self.sequences)

    def offsets(self) -> Iterator[NDArray[np.int64]]:
        """The byte in `.bin` at which each sequence begins."""
        return self._part("<i8", START + 4 * self.sequences, self.sequences)

    def ends(self) -> Iterator[NDArray[np.int64]]:
        """A zero, and the number of sequences up to the end of each document."""
        return self._part("<i8", START + 12 * self.sequences, self.documents + 1)

    def modes(self) -> Iterator[NDArray[np.int8]]:
        """The mode of each sequence, where there are modes."""
        start = START + 12 * self.sequences + 8 * (self.documents + 1)
        return self._part("<i1", start, self.sequences if self.multimodal else 0)

    def _part(self, dtype: str, start: int, count: int) -> Iterator[NDArray[Any]]:
        with open(self.path, "rb", buffering=0) as file:
            file.seek(start)
            for done in range(0, count, PIECE):
                yield np.fromfile(file, dtype, min(PIECE, count - done))


def open_index(prefix: Path) -> Index:
    """Read the head of an index, and hold the file's size against it.

    Raises:
        InputError: there is none, or it is none of Megatron's.
        ProofError: the file is shorter or longer than its head says.
    """
    path = Path(f"{prefix}.idx")
    for file in (path, Path(f"{prefix}.bin")):
        if not file.is_file():
            raise InputError(
                "An indexed dataset is two files", where=prefix,
                expected=f"{prefix}.bin and {prefix}.idx", got=f"no file {file}",
            )  # fmt: skip
    with open(path, "rb") as head:
        raw = head.read(START)
    if not raw.startswith(MAGIC) or len(raw) < START:
        raise InputError(
            "This is no index of Megatron's", where=path,
            expected=f"a file that begins {MAGIC!r}", got=raw[: len(MAGIC)],
        )  # fmt: skip
    version, code, sequences, ends = HEADER.unpack_from(raw, len(MAGIC))
    dtype, size = CODES.get(code), os.path.getsize(path)
    whole = START + 12 * sequences + 8 * ends
    if version != 1 or dtype is None or ends < 1 or size not in (whole, whole + sequences):
        raise ProofError(
            "An index contradicts itself", where=path,
            expected=f"version 1, a known number format, {whole} bytes"
            f" (multimodal: {whole + sequences})",
            got=f"version {version}, format {code}, {sequences} sequences, {ends} document ends,"
            f" {size} bytes",
        )  # fmt: skip
    return Index(Path(prefix), dtype, sequences, ends - 1, size > whole)


def require_size(index: Index, tokens: int) -> None:
    """Hold the size of `.bin` against the lengths.

    Raises:
        ProofError: they contradict each other.
    """
    size, wanted = os.path.getsize(index.data), tokens * index.dtype.itemsize
    if size != wanted:
        raise ProofError(
            "The tokens do not fit their index", where=index.data,
            expected=f"{wanted} bytes for {tokens} tokens", got=f"{size} bytes",
        )  # fmt: skip
