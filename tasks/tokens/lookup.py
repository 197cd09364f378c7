"""Where the Nth document or token of a dataset lies, and what is noted of it; read in parts.

A conversation of packed chat data is meant by "document", too.
"""

from __future__ import annotations

import bisect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core import sorted_lines
from tasks.core.errors import ConfigError, ProofError
from tasks.tokens.indexed import START, Index, open_index, require_size

_REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Place:
    """A document of a dataset.

    Attributes:
        index: the dataset's.
        document: its number, from 0.
        first: how many tokens lie before it.
        tokens: how many it has.
    """

    index: Index
    document: int
    first: int
    tokens: int

    @property
    def range(self) -> tuple[int, int]:
        """The bytes of its ids in `.bin`."""
        size = self.index.dtype.itemsize
        return self.first * size, (self.first + self.tokens) * size

    def ids(self, start: int, stop: int) -> list[int]:
        """Some of its ids."""
        stop = min(stop, self.tokens)
        offset = (self.first + start) * self.index.dtype.itemsize
        ids: list[int] = np.fromfile(
            self.index.data, self.index.dtype, stop - start, offset=offset
        ).tolist()
        return ids


def document(prefix: Path, number: int) -> Place:
    """Find a document by its number.

    Raises:
        ConfigError: there is none.
        InputError: see `open_index`.
        ProofError: `.idx` and `.bin` contradict each other.
    """
    index, lengths, offsets, _ = _opened(prefix)
    _require(number, index.sequences, "--document", "documents", prefix)
    first = int(offsets[number]) // index.dtype.itemsize
    return Place(index, number, first, int(lengths[number]))


def holder(prefix: Path, token: int) -> Place:
    """Find the document that holds a token, by the token's number; see `document`."""
    index, _, offsets, tokens = _opened(prefix)
    _require(token, tokens, "--token", "tokens", prefix)
    return document(prefix, bisect.bisect_right(offsets, token * index.dtype.itemsize) - 1)


def note(listing: Path, place: Place) -> dict[str, Any]:
    """What is noted of a document.

    Args:
        listing: `documents.jsonl` of a sealed dataset or of chat data.
        place: the document.

    Raises:
        ProofError: there is nothing, or it belongs to another document.
    """
    split = place.index.prefix.name
    own = f'{{"split":"{split}"'.encode(), b'{"conversation"'

    def key(line: bytes) -> int | None:
        # A small split has few of the lines; parsing them all would take ten times as long.
        if not line.startswith(own):
            return None
        noted = json.loads(line)
        return int(noted.get("conversation", noted.get("index")))

    found = sorted_lines.find(listing, place.document, key)
    noted: dict[str, Any] = json.loads(found.data) if found else {}
    if noted.get("tokens") != place.tokens:
        got = f"{noted['tokens']} tokens" if noted else "none"
        raise ProofError(
            "The list of the documents does not fit the tokens", where=listing,
            expected=f"a line of document {place.document} of {split}, {place.tokens} tokens",
            got=got, fix="see `megaline verify`, or write the dataset again",
        )  # fmt: skip
    return noted


def texts(tokenizer: Path, *runs: list[int]) -> list[str]:
    """The text of each run of ids; a character that is cut off at its end is left out."""
    from tokenizers import Tokenizer

    read = Tokenizer.from_file(str(tokenizer))
    return [read.decode(ids, skip_special_tokens=False).rstrip(_REPLACEMENT) for ids in runs]


def _opened(prefix: Path) -> tuple[Index, NDArray[np.int32], NDArray[np.int64], int]:
    """An index, its lengths and offsets in memory maps, and how many tokens there are."""
    index = open_index(prefix)
    count = index.sequences
    if not count:
        return index, np.empty(0, np.int32), np.empty(0, np.int64), 0
    lengths = np.memmap(index.path, "<i4", "r", START, count)
    offsets = np.memmap(index.path, "<i8", "r", START + 4 * count, count)
    tokens = int(offsets[-1]) // index.dtype.itemsize + int(lengths[-1])
    require_size(index, tokens)
    return index, lengths, offsets, tokens


def _require(number: int, count: int, option: str, what: str, prefix: Path) -> None:
    if not 0 <= number < count:
        raise ConfigError(
            f"The dataset has no such {what.removesuffix('s')}", where=f"{option} of {prefix}",
            expected=f"0 to {count - 1}" if count else "none to be asked for",
            got=f"{number}; it has {count} {what}",
        )  # fmt: skip
