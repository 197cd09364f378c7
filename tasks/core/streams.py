"""The bytes of a file, decompressed: bz2 of one stream or many, gz, xz and zst, in bounded memory.

Threads decompress the blocks of a bz2 file side by side, as the package `indexed_bzip2` does.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tasks.core.errors import ConfigError
from tasks.core.sources import compression

DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error)
"""What reading raises where a file ends early or is broken; an OSError with no number."""
_PIECE = 1 << 18
# A stream's first bytes, and the bits of its end: a mark and a checksum.
_BZ2_HEADER, _BZ2_END = 4, 80
_BZ2_EMPTY = re.compile(rb"(?:BZh[1-9]\x17rE8P\x90\0{4})*")
_BZ2_LONGEST_GAP = 1 << 20
# Of zst, four bytes can be 128 KiB, and all that some bytes are comes at a time.
_ZST_INPUT = 1 << 10


def pieces(path: Path, threads: int = 1) -> Iterator[tuple[bytes, int]]:
    """A file's decompressed bytes, each piece with how many bytes of the file have been read.

    Args:
        path: how it is compressed is told by its first bytes.
        threads: how many decompress a bz2 file.

    Raises:
        ConfigError: the package for zst is missing.
        EOFError: the file ends early; what lies before its end has been yielded.
        OSError: it is damaged.
        lzma.LZMAError: it is damaged.
        zlib.error: it is damaged.
    """
    kind = compression(path)
    known = 0
    if kind == "bz2":
        known, whole = yield from _side_by_side(path, threads)
        if whole:
            return
    with open(path, "rb") as raw:
        stream: Any = raw if kind == "none" else _OPENERS[kind](raw)
        try:
            _skip(stream, known)
            # Only `read1` hands over what lies before the end of a file that ends early.
            while piece := stream.read1(_PIECE):
                yield piece, raw.tell()
        except Exception as error:
            # zstandard's own errors, whose class is only there with it.
            if type(error).__module__.startswith("zstandard"):
                raise OSError(f"{error}") from error
            raise


def _side_by_side(path: Path, threads: int) -> Generator[tuple[bytes, int], None, tuple[int, bool]]:
    """What a bz2 file holds up to its first damaged block.

    Returns:
        How many bytes that is, and whether it is all that the file holds.

    Raises:
        OSError: a stream in the middle is damaged; those behind it have been yielded.
    """
    import indexed_bzip2

    known, size = 0, path.stat().st_size
    # With one thread it hands over a block before it has checked it.
    with indexed_bzip2.open(str(path), parallelization=max(2, threads)) as file:
        try:
            while piece := file.read(_PIECE):
                known += len(piece)
                # It tells 0 once it has read all.
                yield piece, file.tell_compressed() >> 3 or size
            end = max(file.block_offsets())
        except (RuntimeError, ValueError):
            end = 0
        _require_all(path, sorted(file.available_block_offsets().items()), known)
    return known, end == 8 * size


def _require_all(path: Path, blocks: list[tuple[int, int]], known: int) -> None:
    """Refuse a file of which the package has passed over what it took for no stream.

    Args:
        path: the file.
        blocks: for each block the bit with which it begins, and the bytes that stand before it. One
            that holds nothing is a stream's end, and an empty stream is none.
        known: bytes that were handed over.
    """
    following = [place for place, _ in blocks[1:]]
    ends = [
        ((place + _BZ2_END + 7) >> 3, (behind >> 3) - _BZ2_HEADER)
        for (place, before), (_, then), behind in zip(blocks, blocks[1:], following, strict=False)
        if before == then and before <= known
    ]
    starts = [(0, (blocks[0][0] >> 3) - _BZ2_HEADER)] if blocks else []
    with open(path, "rb") as file:
        for start, stop in starts + ends:
            if stop > start:
                file.seek(start)
                if stop - start > _BZ2_LONGEST_GAP or not _BZ2_EMPTY.fullmatch(
                    file.read(stop - start)
                ):
                    raise OSError(f"a stream of bz2 is damaged at byte {start}")


def _skip(stream: Any, size: int) -> None:
    """Leave out what is known of a stream."""
    while size and (piece := stream.read1(min(size, _PIECE))):
        size -= len(piece)


class _Bz2:
    """Streams of bz2 one behind the other.

    The library's own reader ends without a word where a stream's first bytes are damaged.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._stream = raw, bz2.BZ2Decompressor()

    def read1(self, size: int) -> bytes:
        """Return up to `size` bytes, none only at the end."""
        while True:
            data = b""
            if self._stream.eof:
                # Zeros fill up blocks of a tape.
                data = self._stream.unused_data.lstrip(b"\0")
                while not data:
                    if not (piece := self._raw.read(_PIECE)):
                        return b""
                    data = piece.lstrip(b"\0")
                self._stream = bz2.BZ2Decompressor()
            elif self._stream.needs_input:
                data = self._raw.read(_PIECE)
                if not data:
                    raise EOFError("the last stream of bz2 does not end")
            if found := self._stream.decompress(data, size):
                return found


def _zst(raw: BinaryIO) -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError(
            "zst cannot be read here", where=raw.name, expected="the package `zstandard`",
            got="not installed", fix="pip install 'megaline[zst]', or unpack the file",
        ) from error  # fmt: skip
    # `zstd --long=31` looks back as far; memory is taken as it is filled.
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    return _Zst(raw, decompressor.decompressobj)


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
    "bz2": _Bz2, "gz": gzip.open, "xz": lzma.open, "zst": _zst,
}  # fmt: skip
