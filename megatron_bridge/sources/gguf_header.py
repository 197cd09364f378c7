"""The header of a GGUF file, read by byte ranges: its facts, and where each tensor lies.

Format: magic, version, the numbers of tensors and of facts, the facts (name, type, value), the
tensors (name, dimensions with the fastest first, type, offset), padding, data
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). gguf's own reader maps the whole file,
and what is mapped counts as resident memory; nor does it look at what a file claims.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megatron_bridge.errors import InputError
from megatron_bridge.sources.ranges import Ranges

VERSIONS = (2, 3)
LONGEST_HEADER = 64 * 2**20
"""In bytes; a vocabulary of 260,000 tokens with its merges takes 15 MB."""
LONGEST_NAME = 65535
MOST_DIMENSIONS = 4
_STEP = 2**20

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"} | {
    12: "d"
}
"""Types of values, in `struct`'s letters."""
_TEXT, _LIST = 8, 9


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies, as the header says; whether it does is to be seen."""

    type: int
    shape: tuple[int, ...]
    """Row by row: the last dimension is the fastest."""
    offset: int
    """Of the first byte in the file."""


@dataclass(frozen=True)
class Header:
    """What a file says of itself."""

    facts: dict[str, Any]
    """Numbers, texts, lists of texts, and arrays of numbers, by name."""
    tensors: dict[str, Entry]


def read(file: Ranges) -> Header:
    """Return a file's header.

    Raises:
        InputError: it is no GGUF file, of another version, or damaged.
    """
    source = _Cursor(file)
    if source.take(4) != b"GGUF":
        raise damaged(file, "a file that does not begin with GGUF")
    version = source.number("I")
    if version not in VERSIONS:
        raise damaged(file, f"version {version}, or numbers with the high byte first")
    tensors, count = source.number("Q"), source.number("Q")
    facts: dict[str, Any] = {}
    for _ in range(count):
        name = source.text(LONGEST_NAME)
        if name in facts:
            raise damaged(file, f"{name} twice")
        facts[name] = _value(source)
    found: dict[str, Entry] = {}
    for _ in range(tensors):
        name = source.text(LONGEST_NAME)
        if name in found:
            raise damaged(file, f"the tensor {name} twice")
        found[name] = _entry(source, name)
    alignment = facts.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= _STEP:
        raise damaged(file, f"general.alignment {alignment!r}")
    start = -(-source.at // alignment) * alignment
    return Header(facts, {n: Entry(e.type, e.shape, start + e.offset) for n, e in found.items()})


def damaged(file: Ranges, got: object) -> InputError:
    """Return the error for a file that is not what it should be."""
    return InputError(
        "The GGUF file cannot be read",
        where=file.name,
        expected=f"a whole GGUF file of version {' or '.join(map(str, VERSIONS))}",
        got=got,
        fix="fetch the file again",
    )


def numbers(file: Ranges, facts: Mapping[str, Any], name: str, count: int) -> list[Any]:
    """Return a fact that is `count` numbers, one for each token.

    Raises:
        InputError: it is something else.
    """
    found = facts.get(name)
    if not isinstance(found, array | list) or any(isinstance(value, str) for value in found):
        raise damaged(file, f"{name} that is no list of numbers")
    if len(found) != count:
        raise damaged(file, f"{name} of {len(found)} for {count} tokens")
    return list(found)


def _value(source: _Cursor) -> Any:
    kind = source.number("I")
    if kind == _TEXT:
        return source.text(LONGEST_HEADER)
    if kind != _LIST:
        return source.number(source.letter(kind))
    kind, count = source.number("I"), source.number("Q")
    if kind == _TEXT:
        return [source.text(LONGEST_HEADER) for _ in range(count)]
    letter = source.letter(kind)
    numbers = array(letter.replace("?", "B"))
    numbers.frombytes(source.take(count * struct.calcsize(f"<{letter}")))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _entry(source: _Cursor, name: str) -> Entry:
    dimensions = source.number("I")
    if not 0 < dimensions <= MOST_DIMENSIONS:
        raise damaged(source.file, f"the tensor {name} with {dimensions} dimensions")
    shape = tuple(source.number("Q") for _ in range(dimensions))
    return Entry(source.number("I"), shape[::-1], source.number("Q"))


class _Cursor:
    """Reads a header from its first byte on, a megabyte at a time."""

    def __init__(self, file: Ranges) -> None:
        self.file, self.at = file, 0
        self._held, self._start = b"", 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > min(self.file.size, LONGEST_HEADER):
            raise damaged(
                self.file, f"{count} bytes from byte {self.at} of {self.file.size} in the header"
            )
        if end > self._start + len(self._held):
            length = min(max(count, _STEP), self.file.size - self.at)
            self._held, self._start = self.file.read(self.at, length), self.at
        data = self._held[self.at - self._start : end - self._start]
        self.at = end
        return data

    def number(self, letter: str) -> Any:
        (value,) = struct.unpack(f"<{letter}", self.take(struct.calcsize(f"<{letter}")))
        return value

    def letter(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise damaged(self.file, f"a value of unknown type {kind} at byte {self.at}")
        return _NUMBERS[kind]

    def text(self, longest: int) -> str:
        length = self.number("Q")
        if length > longest:
            raise damaged(self.file, f"a text of {length} bytes at byte {self.at}")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise damaged(self.file, f"a text that is not UTF-8 at byte {self.at}") from error
