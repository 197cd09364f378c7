"""The bytes of a file, decompressed: bz2 of one stream or many, gz, xz and zst, in bounded memory.

Threads decompress the blocks of a bz2 file side by side.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tasks.core import bz2_blocks
from tasks.core.errors import ConfigError
from tasks.core.sources import compression

DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error)
"""What reading raises where a file ends early or is broken; an OSError with no number."""
_PIECE = 1 << 18
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
    with open(path, "rb") as raw:
        known = 0
        if kind == "bz2":
            # With one thread, too: of a damaged file all must get the same.
            rest = yield from bz2_blocks.contents(raw, threads)
            if rest is None:
                return
            known = rest.known
            raw.seek(rest.stream)
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


def _skip(stream: Any, size: int) -> None:
    """Leave out what is known of a stream."""
    while size and (piece := stream.read1(min(size, _PIECE))):
        size -= len(piece)


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
    "bz2": bz2.open, "gz": gzip.open, "xz": lzma.open, "zst": _zst,
}  # fmt: skip
