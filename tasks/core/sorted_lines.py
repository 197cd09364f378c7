"""Finds one of millions of lines without an index: halves a file whose lines are in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_FEW = 1 << 16
"""Bytes that are read at once as fast as they are halved."""


class Found(NamedTuple):
    """A line, and the bytes from `start` to `stop` at which it lies, its end included."""

    start: int
    stop: int
    data: bytes


def find(path: Path, wanted: Any, key: Callable[[bytes], Any]) -> Found | None:
    """Find the line that has a key. No more is read than the file once, and mostly far less.

    Args:
        path: a file of lines, each with a line feed.
        wanted: the key.
        key: of a line; it grows from line to line. None for lines that are passed over.
    """
    low, high = 0, path.stat().st_size
    with open(path, "rb") as file:
        while low < high:
            # The line, if it is there, begins at `low` at the earliest, and before `high`.
            middle = low if high - low < _FEW else (low + high) // 2
            start = low
            if middle > low:
                file.seek(middle - 1)
                start = middle - 1 + len(file.readline())
            file.seek(start)
            data, value = b"", None
            while value is None and start + len(data) < high:
                start += len(data)
                data = file.readline()
                value = key(data)
            if value is None or value > wanted:
                high = middle
            elif value < wanted:
                low = start + len(data)
            else:
                return Found(start, start + len(data), data)
    return None
