"""Megatron's indexed dataset: a `.bin` of token ids and an `.idx` of where documents begin.

Byte for byte what `megatron/core/datasets/indexed_dataset.py` writes, with numpy alone:
`.idx` = magic, version 1 (u64), number format (u8), number of sequences (u64) and of document ends
(u64), lengths (i32), byte offsets (i64), document ends (i64). One document is one sequence.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import InputError, ProofError

Ids = NDArray[Any]
DType = np.dtype[Any]

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<QBQQ")
_CODES: dict[int, DType] = {4: np.dtype("<i4"), 8: np.dtype("<u2")}
_SMALL_VOCABULARY = 65_500


def best_dtype(vocab_size: int) -> DType:
    """uint16 where Megatron's `DType.optimal_dtype` takes it, else int32."""
    return _CODES[8] if vocab_size < _SMALL_VOCABULARY else _CODES[4]


class Writer:
    """Writes one dataset; the index when it is left as a context. Four bytes a document in memory.

    Args:
        prefix: path without `.bin` and `.idx`.
        dtype: see `best_dtype`.
    """

    def __init__(self, prefix: Path, dtype: DType) -> None:
        self.documents = self.tokens = 0
        self._prefix, self._dtype = prefix, dtype
        self._lengths: list[NDArray[np.int32]] = []
        self._bin = open(f"{prefix}.bin", "wb")

    def add(self, ids: Ids, lengths: NDArray[np.int32]) -> None:
        """Add documents.

        Args:
            ids: their ids one after the other, [sum of lengths].
            lengths: ids of each document, [documents].
        """
        self._bin.write(np.ascontiguousarray(ids, self._dtype).data)
        self._lengths.append(lengths)
        self.documents += len(lengths)
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
        code = next(code for code, dtype in _CODES.items() if dtype == self._dtype)
        with open(f"{self._prefix}.idx", "wb") as file:
            file.write(_MAGIC + _HEADER.pack(1, code, len(lengths), len(lengths) + 1))
            file.write(lengths.data)
            file.write((offsets * self._dtype.itemsize).data)
            file.write(np.arange(len(lengths) + 1, dtype="<i8").data)


@dataclass(frozen=True)
class Dataset:
    """A dataset in memory maps.

    Attributes:
        ids: all ids, [tokens].
        ends: where each document ends in `ids`, [documents].
    """

    ids: Ids
    ends: NDArray[np.int64]

    def document(self, index: int) -> Ids:
        """The ids of one document, its end-of-document included."""
        return self.ids[self.ends[index - 1] if index else 0 : self.ends[index]]


def read(prefix: Path) -> Dataset:
    """Open a dataset whose documents are single sequences.

    Raises:
        InputError: the index is none of Megatron's.
        ProofError: `.idx` and `.bin` contradict each other.
    """
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    raw = index.read_bytes()
    start = len(_MAGIC) + _HEADER.size
    if not raw.startswith(_MAGIC) or len(raw) < start:
        raise InputError(
            "This is no index of Megatron's", where=index,
            expected=f"a file that begins {_MAGIC!r}", got=raw[: len(_MAGIC)],
        )  # fmt: skip
    _, code, sequences, ends = _HEADER.unpack_from(raw, len(_MAGIC))
    dtype = _CODES.get(code)
    whole = start + 12 * sequences + 8 * ends
    if dtype is None or ends != sequences + 1 or len(raw) != whole:
        raise ProofError(
            "An index contradicts itself", where=index,
            expected=f"format 4 or 8, one sequence a document, {whole} bytes",
            got=f"format {code}, {sequences} sequences in {ends - 1} documents, {len(raw)} bytes",
        )  # fmt: skip
    lengths = np.frombuffer(raw, "<i4", sequences, start)
    positions = np.cumsum(lengths, dtype=np.int64)
    tokens = int(positions[-1]) if sequences else 0
    size = os.path.getsize(data)
    if size != tokens * dtype.itemsize:
        raise ProofError(
            "The tokens do not fit their index", where=data,
            expected=f"{tokens * dtype.itemsize} bytes for {tokens} tokens", got=f"{size} bytes",
        )  # fmt: skip
    ids = np.memmap(data, dtype, "r") if tokens else np.empty(0, dtype)
    return Dataset(ids, positions)
