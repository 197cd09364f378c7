"""Files read by byte ranges."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Protocol

from megatron_bridge.errors import InputError


class Ranges(Protocol):
    """A file of known size that gives any range of its bytes."""

    name: str
    size: int
    state: str
    """Changes with the file's content, as far as its place tells."""

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`."""

    def close(self) -> None:
        """Release the file."""


class LocalFile:
    """A file on a disk, read by any number of threads.

    `pread` keeps the pages out of this process's resident memory.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            raise InputError("A weight file cannot be read", where=path, got=error) from error
        self._close = weakref.finalize(self, os.close, self._descriptor)
        stat = os.fstat(self._descriptor)
        self.size, self.state = stat.st_size, f"{stat.st_ino} {stat.st_mtime_ns}"

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        data = bytearray(length)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`."""
        done, length = 0, len(target)
        while done < length:  # one call reads at most 2 GiB
            count = os.preadv(self._descriptor, [target[done:]], offset + done)
            if not count:
                raise _short(self.name, offset, length, done)
            done += count

    def close(self) -> None:
        """Close the descriptor; it also closes when nobody holds the file any more."""
        self._close()


class Part:
    """A range of a file, as a file of its own."""

    def __init__(self, file: Ranges, offset: int, size: int) -> None:
        self.name, self.size, self.state = file.name, size, file.state
        self._file, self._offset = file, offset

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        if offset < 0 or offset + length > self.size:
            raise _short(self.name, self._offset + offset, length, max(0, self.size - offset))
        return self._file.read(self._offset + offset, length)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`."""
        if offset < 0 or offset + len(target) > self.size:
            raise _short(self.name, self._offset + offset, len(target), self.size - offset)
        self._file.read_into(self._offset + offset, target)

    def close(self) -> None:
        """The whole file is closed by its owner."""


def _short(name: str, offset: int, length: int, got: int) -> InputError:
    return InputError(
        "A weight file is truncated",
        where=f"{name}, byte {offset}",
        expected=f"{length} bytes",
        got=f"{got} bytes",
        fix="fetch the file again",
    )
