"""The blocks of a bz2 file, decompressed side by side: bz2 lets go of Python's lock.

A stream holds blocks of up to 900 kB one behind the other, each at any bit. A block begins with a
mark of 48 bits and its checksum, so it can be made a stream of its own. Nothing is judged here: at
damage, at a mark that chance has made and at anything odd the blocks end, and the standard library
reads on from there.
"""

from __future__ import annotations

import bz2
import re
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, NamedTuple

_PIECE = 1 << 20
# Of its 900 kB a block makes more where bytes repeat: a few of them could hold gigabytes.
_LARGEST_CONTENT = 1 << 24
# No block has as many bytes; a file that goes on for so long without a mark is no bz2.
_LONGEST_BLOCK = 1 << 21
_BLOCK, _END = 0x314159265359, 0x177245385090
_MARK, _CHECKSUM, _HEADER = 48, 32, 32
_HEADERS = [int.from_bytes(b"BZh%d" % level, "big") for level in range(1, 10)]
_MARK_BYTES = 7
# The five whole bytes that a mark has wherever it begins in a byte.
_SHIFTS = {(_BLOCK << 8 - shift).to_bytes(7, "big")[1:6]: shift for shift in range(8)}
_WHOLE_BYTES = re.compile(b"|".join(map(re.escape, _SHIFTS)))


class Rest(NamedTuple):
    """What the blocks have left: all from a stream's first byte on, but for some of its content."""

    stream: int
    known: int


class _Segment(NamedTuple):
    """A file from one block's mark to the next.

    Attributes:
        data: the bytes that hold it.
        first: the bit of `data` with which it begins.
        bits: how many it has.
        end: where the next begins in the file, in bytes; None where the file ends.
    """

    data: bytes
    first: int
    bits: int
    end: int | None


class _Content(NamedTuple):
    """What a block holds, its checksum, and the stream's own where that ends with it."""

    data: bytes
    checksum: int
    of_stream: int | None


def contents(raw: BinaryIO, threads: int) -> Generator[tuple[bytes, int], None, Rest | None]:
    """Yield what each block holds, with how many bytes of the file have been read.

    Args:
        raw: a bz2 file at its beginning.
        threads: how many decompress.

    Returns:
        What has not been read; None at the end of the file.
    """
    waiting: deque[tuple[Future[_Content | None], int | None]] = deque()
    rest, checksum = Rest(0, 0), 0
    pool = ThreadPoolExecutor(threads)
    try:
        for segment in _segments(raw):
            if segment is not None:
                waiting.append((pool.submit(_content, segment), segment.end))
            while waiting and (segment is None or len(waiting) > 2 * threads):
                future, end = waiting.popleft()
                content = future.result()
                if content is None:
                    return rest
                checksum = (checksum << 1 & 0xFFFFFFFF | checksum >> 31) ^ content.checksum
                if content.of_stream not in (None, checksum):
                    return rest
                rest = Rest(rest.stream, rest.known + len(content.data))
                yield content.data, end or raw.tell()
                if content.of_stream is not None:
                    if end is None:
                        return None
                    rest, checksum = Rest(end - _HEADER // 8, 0), 0
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return rest


def _segments(raw: BinaryIO) -> Iterator[_Segment | None]:
    """Yield the file from each mark to the next, and None behind the last."""
    held, base, start, scanned, piece = b"", 0, _HEADER, 0, b"-"
    while piece and len(held) < _LONGEST_BLOCK:
        piece = raw.read(_PIECE)
        held += piece
        for place in _marks(held, scanned):
            # One that was there already, where the last piece ended, is no other one.
            if place > start:
                yield _segment(held, start, place, base + (place >> 3))
                start = place
        cut = start >> 3
        scanned = max(0, len(held) - cut - _MARK_BYTES)
        held, base, start = held[cut:], base + cut, start & 7
    if not piece:
        yield _segment(held, start, 8 * len(held), None)
    yield None


def _segment(held: bytes, start: int, stop: int, end: int | None) -> _Segment:
    data = held[start >> 3 : (stop + 7) >> 3]
    return _Segment(data, start & 7, stop - start, end)


def _marks(held: bytes, scanned: int) -> Iterator[int]:
    """The bits at which blocks begin."""
    for match in _WHOLE_BYTES.finditer(held, scanned):
        first, shift = match.start() - 1, _SHIFTS[match[0]]
        around = held[max(first, 0) : first + _MARK_BYTES]
        found = int.from_bytes(around, "big") >> 8 - shift & (1 << _MARK) - 1
        if found == _BLOCK and len(around) == _MARK_BYTES:
            yield 8 * first + shift


def _content(segment: _Segment) -> _Content | None:
    """Decompress a block; None where it is none."""
    bits, padding = segment.bits, 8 * len(segment.data) - segment.first - segment.bits
    number = int.from_bytes(segment.data, "big") >> padding & (1 << bits) - 1
    behind = _behind(number & (1 << 160) - 1, segment.end is None)
    of_stream = None
    if behind is not None:
        number >>= behind
        bits -= behind + _MARK + _CHECKSUM
        of_stream = number & (1 << _CHECKSUM) - 1
        number >>= _MARK + _CHECKSUM
    elif segment.end is None:
        return None
    if bits < _MARK + _CHECKSUM:
        return None
    checksum = number >> bits - _MARK - _CHECKSUM & (1 << _CHECKSUM) - 1
    number = (number << _MARK | _END) << _CHECKSUM | checksum
    bits += _MARK + _CHECKSUM
    source = (number << -bits % 8).to_bytes((bits + 7) // 8, "big")
    stream = bz2.BZ2Decompressor()
    try:
        data = stream.decompress(b"BZh9" + source, _LARGEST_CONTENT)
    except (OSError, EOFError):
        return None
    if not stream.eof or stream.unused_data:
        return None
    return _Content(data, checksum, of_stream)


def _behind(tail: int, at_end: bool) -> int | None:
    """How many bits stand behind a stream's end: up to a byte's, and the next one's header."""
    if not at_end and tail & (1 << _HEADER) - 1 not in _HEADERS:
        return None
    header = 0 if at_end else _HEADER
    for behind in range(header, header + 8):
        if tail >> behind + _CHECKSUM & (1 << _MARK) - 1 == _END:
            return behind
    return None
