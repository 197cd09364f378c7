"""How long the sequences of an indexed dataset are: all that its samples depend on. No torch.

The `.idx` of `megatron/core/datasets/indexed_dataset.py`: magic, version (u64), number format (u8),
number of sequences (u64) and of document ends (u64), lengths (i32), byte offsets (i64), document
ends (i64). A document has one sequence, or one a sentence.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatron_bridge.errors import InputError

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<QBQQ")
_ITEM_BYTES = {4: 4, 8: 2}
_START = len(_MAGIC) + _HEADER.size


@dataclass(frozen=True)
class Lengths:
    """An indexed dataset's sizes.

    Attributes:
        each: tokens of each sequence, [sequences].
        documents: their number.
        tokens: in all.
        sha256: of `each`; where it is the same, so are the samples' places.
    """

    each: NDArray[np.int32]
    documents: int
    tokens: int
    sha256: str


def read(prefix: Path) -> Lengths:
    """Read an `.idx` and hold it against its `.bin`.

    Raises:
        InputError: one of them is missing, empty or no such file, or they contradict each other.
    """
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    for path in (data, index):
        if not path.is_file() or not path.stat().st_size:
            raise InputError(
                "The training split holds no tokens",
                where=path,
                expected="an indexed dataset with at least one document",
                got="an empty file" if path.is_file() else "no such file",
                fix="run the tokens stage on more documents, or give training a larger share",
            )
    with index.open("rb") as file:
        head = file.read(_START)
        if not head.startswith(_MAGIC) or len(head) < _START:
            raise _damaged(index, f"a file that begins {_MAGIC!r}", repr(head[: len(_MAGIC)]))
        _, code, sequences, ends = _HEADER.unpack_from(head, len(_MAGIC))
        whole = _START + 12 * sequences + 8 * ends
        if code not in _ITEM_BYTES or index.stat().st_size != whole:
            expected = f"number format 4 or 8, {whole} bytes for {sequences} sequences"
            raise _damaged(index, expected, f"format {code}, {index.stat().st_size} bytes")
        each = np.fromfile(file, "<i4", sequences)
    tokens = int(each.sum(dtype=np.int64))
    if data.stat().st_size != tokens * _ITEM_BYTES[code]:
        expected = f"{tokens * _ITEM_BYTES[code]} bytes for the {tokens} tokens of its index"
        raise _damaged(data, expected, f"{data.stat().st_size} bytes")
    return Lengths(each, ends - 1, tokens, hashlib.sha256(each.data).hexdigest())


def _damaged(path: Path, expected: str, got: str) -> InputError:
    return InputError(
        "This is no indexed dataset of Megatron's, or a damaged one",
        where=path,
        expected=expected,
        got=got,
        fix="write it again: `megaline run … --until tokens`",
    )
