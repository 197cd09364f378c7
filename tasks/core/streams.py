"""The bytes of a file, decompressed: bz2 of one stream or many, gz, xz and zst, in bounded memory.

Wikimedia's multi-stream dumps are thousands of bz2 streams one behind the other, which threads
decompress side by side: bz2 lets go of Python's lock.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from tasks.core.errors import ConfigError
from tasks.core.sources import compression

DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error)
"""What reading raises where a file ends early or is broken; an OSError with no number."""
_PIECE = 1 << 18
# Of zst, four bytes can be 128 KiB, and all that some bytes are comes at a time.
_ZST_INPUT = 1 << 10
# The mark of a stream with the mark of its first block: 80 bits that chance does not make.
_STREAM = re.compile(rb"BZh[1-9]1AY&SY")
# Wikimedia's streams hold 100 pages, some 0.5 MB; what is larger is read as it comes.
_LONGEST_STREAM = 1 << 23
# What a future may hold: a few bytes can be streams of gigabytes.
_LARGEST_CONTENT = 1 << 24


def pieces(path: Path, threads: int = 1) -> Iterator[tuple[bytes, int]]:
    """A file's decompressed bytes, each piece with how many bytes of the file have been read.

    Args:
        path: how it is compressed is told by its first bytes.
        threads: how many decompress a bz2 file of many streams.

    Raises:
        ConfigError: the package for zst is missing.
        EOFError: the file ends early; what lies before its end has been yielded.
        OSError: it is damaged.
        lzma.LZMAError: it is damaged.
        zlib.error: it is damaged.
    """
    kind = compression(path)
    with open(path, "rb") as raw:
        if kind == "bz2" and threads > 1:
            raw.seek((yield from _side_by_side(raw, threads)))
        stream: Any = raw if kind == "none" else _OPENERS[kind](raw)
        try:
            # Only `read1` hands over what lies before the end of a file that ends early.
            while piece := stream.read1(_PIECE):
                yield piece, raw.tell()
        except Exception as error:
            # zstandard's own errors, whose class is only there with it.
            if type(error).__module__.startswith("zstandard"):
                raise OSError(f"{error}") from error
            raise


def _side_by_side(raw: BinaryIO, threads: int) -> Generator[tuple[bytes, int], None, int]:
    """The content of short, whole streams; returns where the first other one begins."""
    waiting: deque[tuple[Future[bytes | None], int, int]] = deque()
    done = 0
    pool = ThreadPoolExecutor(threads)
    try:
        for source, start in _short_streams(raw):
            waiting.append((pool.submit(_content, source), start, start + len(source)))
            while len(waiting) > 2 * threads:
                content = waiting[0][0].result()
                if content is None:
                    return done
                done = waiting.popleft()[2]
                yield content, done
        while waiting and (content := waiting[0][0].result()) is not None:
            done = waiting.popleft()[2]
            yield content, done
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return done


def _short_streams(raw: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Whole streams, some at a time, and where they begin; ends before a long one."""
    held, start = b"", 0
    while len(held) <= _LONGEST_STREAM and (piece := raw.read(_PIECE)):
        held += piece
        marks = [match.start() for match in _STREAM.finditer(held, 1)]
        if marks:
            yield held[: marks[-1]], start
            start += marks[-1]
            held = held[marks[-1] :]


def _content(source: bytes) -> bytes | None:
    """What streams hold; None where that is too much at a time, or they are damaged."""
    found, size = [], 0
    while source:
        stream = bz2.BZ2Decompressor()
        try:
            found.append(stream.decompress(source, _LARGEST_CONTENT - size))
        except (OSError, EOFError):
            return None
        size += len(found[-1])
        if not stream.eof or size >= _LARGEST_CONTENT:
            return None
        source = stream.unused_data
    return b"".join(found)


def _zst(raw: BinaryIO) -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError(
            "zst cannot be read here", where=raw.name, expected="the package `zstandard`",
            got="not installed", fix="pip install 'megaline[zst]', or unpack the file",
        ) from error  # fmt: skip
    return _Zst(raw, zstandard.ZstdDecompressor().decompressobj)


class _Zst:
    """Frames of zst one behind the other.

    The package's own reader takes a frame that ends early for a whole one.
    """

    def __init__(self, raw: BinaryIO, begin: Callable[[], Any]) -> None:
        self._raw, self._begin = raw, begin
        self._frame: Any = None

    def read1(self, size: int) -> bytes:
        """Return about `size` bytes, fewer only before the end."""
        found, length = [], 0
        while length < size:
            data = self._raw.read(_ZST_INPUT)
            if not data:
                if self._frame is not None and not length:
                    raise EOFError("the last frame does not end")
                break
            while data:
                self._frame = self._frame or self._begin()
                found.append(self._frame.decompress(data))
                length += len(found[-1])
                data = self._frame.unused_data
                self._frame = None if self._frame.eof else self._frame
        return b"".join(found)


_OPENERS: dict[str, Callable[..., Any]] = {
    "bz2": bz2.open, "gz": gzip.open, "xz": lzma.open, "zst": _zst,
}  # fmt: skip
