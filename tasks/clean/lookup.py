"""Where a document lies in the parts of a clean corpus; no part is read to find it."""

from __future__ import annotations

import bisect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core import sorted_lines


@dataclass(frozen=True)
class Place:
    """A line of a clean corpus.

    Attributes:
        part: its file.
        range: the bytes there, its end included.
        document: what it holds; see `CleanCorpus`.
    """

    part: Path
    range: tuple[int, int]
    document: dict[str, Any]


def find(parts: Sequence[Path], source: str, start: int) -> Place | None:
    """Find the document that was made of what begins at a place of the raw corpus.

    Documents stand in the order of the raw corpus, whose files are in the order of their paths.

    Args:
        parts: all of the corpus, none of them empty.
        source: a file of the raw corpus.
        start: the byte of it, unpacked, or the row of Parquet.
    """
    wanted = source.split("/"), start
    # Without leading zeros a longer name is a later one.
    ordered = sorted(parts, key=lambda part: (len(part.name), part.name))
    number = bisect.bisect_right(ordered, wanted, key=_first) - 1
    found = sorted_lines.find(ordered[number], wanted, _key) if number >= 0 else None
    if found is None:
        return None
    return Place(ordered[number], (found.start, found.stop), json.loads(found.data))


def _first(part: Path) -> tuple[list[str], int]:
    with open(part, "rb") as file:
        return _key(file.readline())


def _key(line: bytes) -> tuple[list[str], int]:
    document = json.loads(line)
    return document["source"].split("/"), document["range"][0]
