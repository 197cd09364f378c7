"""What a source file is cut into before anything is parsed: pages of a dump, rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol


class Raw(NamedTuple):
    """A page or a row, unparsed, and where it lies in its file.

    Attributes:
        start: where it begins in the unpacked file, in bytes; for Parquet the row's number.
        stop: where it ends there; for Parquet the number of the next row.
        data: its bytes, in UTF-8.
    """

    start: int
    stop: int
    data: bytes


class Reader(Protocol):
    """A source file's pages or rows, read once and in order.

    Attributes:
        path: the file.
        damage: where it ends early, once it has been read to there; None where it is whole.
    """

    path: Path
    damage: str | None

    def raw(self) -> Iterator[Raw]:
        """Yield each page or row."""
