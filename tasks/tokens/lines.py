"""JSON lines in blocks of some MiB, out of plain files or compressed ones."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from tasks.core.errors import InputError
from tasks.core.sources import compression
from tasks.core.streams import DAMAGE, pieces

LONGEST = 1 << 26
"""Bytes of the longest line that is read: memory must be bounded."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_BUFFER = 1 << 18
_SAMPLED, _BEGINNING = 1 << 16, 1 << 13
_SMALLEST, _LARGEST, _OF_A_CORPUS = 1 << 18, 1 << 23, 16


@dataclass(frozen=True)
class Block:
    """The lines that begin at bytes `start` to `stop` of a file, unpacked.

    Attributes:
        number: counted through the corpus from 0.
        file: where they lie.
        start: the first may begin earlier, in the block before.
        stop: the last may end later.
        data: the lines, where the file is compressed; then they end at `stop`.
        read: bytes of the corpus, as it lies on the disk, up to here.
    """

    number: int
    file: Path
    start: int
    stop: int
    data: bytes | None
    read: int


@dataclass(frozen=True)
class Line:
    """A line and where it lies in its file, unpacked: bytes."""

    start: int
    stop: int
    data: bytes


def sample(files: Sequence[Path], most: int = 1 << 20) -> Iterator[Line]:
    """Lines from all over a corpus, of a compressed file from its beginning.

    Their texts' beginnings are some 1 % of it, at least 64 KiB, and at most about `most` bytes.

    Raises:
        ConfigError: see `blocks`.
        InputError: see `blocks`.
    """
    sizes = [file.stat().st_size for file in files]
    wanted = min(most, sum(sizes), max(_SAMPLED, sum(sizes) // 100))
    for file, size in zip(files, sizes, strict=True):
        part = 1 + wanted * size // max(1, sum(sizes))
        if compression(file) != "none":
            unpacked = _unpacked(file, part)
            for start, data, read in itertools.islice(unpacked, 1):
                yield from lines(Block(0, file, start, start + len(data), data, read))
            continue
        places = 1 + part // _BEGINNING
        for place in range(places):
            taken = 0
            for line in lines(Block(0, file, size * place // places, size, None, 0)):
                yield line
                taken += min(len(line.data), _BEGINNING)
                if taken >= _BEGINNING:
                    break


def layout() -> tuple[int, ...]:
    """What the cuts between blocks depend on, beside the files."""
    return _SMALLEST, _LARGEST, _OF_A_CORPUS, LONGEST


def blocks(files: Sequence[Path]) -> Iterator[Block]:
    """Cut files into blocks, in order. Only compressed ones are read here.

    Raises:
        ConfigError: the package for zst is missing.
        InputError: a compressed file is damaged, or ends early.
    """
    sizes = [file.stat().st_size for file in files]
    size = min(_LARGEST, max(_SMALLEST, sum(sizes) // _OF_A_CORPUS))
    number = before = 0
    for file, total in zip(files, sizes, strict=True):
        if compression(file) == "none":
            for start in range(0, total, size):
                stop = min(start + size, total)
                yield Block(number, file, start, stop, None, before + stop)
                number += 1
        else:
            for start, data, read in _unpacked(file, size):
                yield Block(number, file, start, start + len(data), data, before + read)
                number += 1
        before += total
    if not number:
        yield Block(0, files[0], 0, 0, b"", before)


def lines(block: Block) -> Iterator[Line]:
    """Yield a block's lines without what ends them; see `LONGEST` for longer ones.

    As in Python's text files, a line ends in a line feed, a carriage return, or both.
    """
    with _opened(block) as file:
        at, stop = block.start, block.stop
        if block.data is None and at:
            # A line belongs to the block in which it begins.
            file.seek(at - 1)
            at += _skip(file) - 1
        while at < stop and (data := file.readline(LONGEST)):
            end = at + len(data)
            if len(data) == LONGEST and not data.endswith(b"\n"):
                yield Line(at, end, data)
                at = end + _skip(file)
                continue
            if b"\r" in data:
                yield from _split(at, data)
            else:
                yield Line(at, end, data.removesuffix(b"\n"))
            at = end


def parse(line: Line) -> dict[str, Any] | str:
    """The object in a line, or what is wrong with it."""
    if len(line.data) >= LONGEST:
        return f"a line of {LONGEST >> 20} MiB or more"
    try:
        value = orjson.loads(line.data)
    except ValueError:
        if not line.data.strip():
            return "an empty line"
        try:
            # It takes what Megatron-LM takes: NaN, and halves of surrogate pairs. And the mark that
            # some editors put before a file.
            value = json.loads(line.data.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            return "no JSON"
    return value if isinstance(value, dict) else "no JSON object"


def texts(found: Iterable[Line], keys: Sequence[str]) -> Iterator[str]:
    """The beginnings of the texts in lines that have any."""
    for line in found:
        value = parse(line)
        if isinstance(value, dict):
            for text in (value.get(key) for key in keys):
                parts: list[Any] = text if isinstance(text, list) else [text]
                yield from (part[:_BEGINNING] for part in parts if is_text(part, line))


def is_text(value: Any, line: Line) -> bool:
    """Whether a value in a line is text that can be read; halves of surrogate pairs cannot."""
    if not isinstance(value, str):
        return False
    if not _SURROGATE.search(line.data):
        # Only an escape can spell one.
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _opened(block: Block) -> BinaryIO:
    return open(block.file, "rb", _BUFFER) if block.data is None else io.BytesIO(block.data)


def _unpacked(file: Path, size: int) -> Iterator[tuple[int, bytes, int]]:
    """Whole lines of a compressed file: where they begin, their bytes, and how much was read."""
    held, start, read = bytearray(), 0, 0
    try:
        for piece, read in pieces(file):
            held += piece
            if len(held) >= size and (cut := held.rfind(b"\n") + 1 or _too_long(held)):
                yield start, bytes(held[:cut]), read
                del held[:cut]
                start += cut
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(
            "A compressed file is damaged", where=file, expected="a whole file",
            got=f"{error} after {start + len(held)} unpacked bytes", fix="fetch it again",
        ) from error  # fmt: skip
    if held:
        yield start, bytes(held), read


def _too_long(held: bytearray) -> int:
    """Where to cut inside a line that is set aside anyhow."""
    return len(held) if len(held) >= LONGEST else 0


def _skip(file: BinaryIO) -> int:
    """Read on to the end of a line, in pieces; returns the number of bytes."""
    count = 0
    while piece := file.readline(1 << 20):
        count += len(piece)
        if piece.endswith(b"\n"):
            break
    return count


def _split(start: int, data: bytes) -> Iterator[Line]:
    for part in data.splitlines(keepends=True):
        yield Line(start, start + len(part), part.rstrip(b"\r\n"))
        start += len(part)
