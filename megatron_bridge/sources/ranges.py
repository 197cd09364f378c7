"""Files read by byte ranges, on a disk or behind a URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from megatron_bridge.errors import InputError, RetryableError


class Ranges(Protocol):
    """A file of known size that gives any range of its bytes."""

    name: str
    size: int
    fetched: int
    """Bytes read so far."""

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`."""

    def close(self) -> None:
        """Release the file."""


class LocalFile:
    """A file on a disk. `pread` keeps the pages out of this process's resident memory."""

    def __init__(self, path: Path) -> None:
        self.name, self.fetched = str(path), 0
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            raise InputError("A weight file cannot be read", where=path, got=error) from error
        self.size = os.fstat(self._descriptor).st_size

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
        self.fetched += length

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


class RemoteFile:
    """A file behind any URL that fsspec reads; only the ranges asked for are fetched."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self.name, self.fetched = path, 0
        self._filesystem, self._path = filesystem, path
        try:
            self.size = int(filesystem.size(path))
        except FileNotFoundError as error:
            raise InputError("There is no such file", where=path, got=error) from error
        except OSError as error:
            raise RetryableError("The file cannot be reached", where=path, got=error) from error

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        try:
            data: bytes = self._filesystem.cat_file(self._path, offset, offset + length)
        except OSError as error:
            raise RetryableError(
                "A range of the file could not be fetched",
                where=f"{self.name}, bytes {offset} to {offset + length}",
                got=error,
                fix="run the same command again; what is finished is kept",
            ) from error
        if len(data) != length:
            raise _short(self.name, offset, length, len(data))
        self.fetched += length
        return data

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`."""
        target[:] = self.read(offset, len(target))

    def close(self) -> None:
        """Nothing is held open."""


class Part:
    """A range of a file, as a file of its own."""

    def __init__(self, file: Ranges, offset: int, size: int) -> None:
        self.name, self.size, self.fetched = file.name, size, 0
        self._file, self._offset = file, offset

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        if offset < 0 or offset + length > self.size:
            raise _short(self.name, self._offset + offset, length, max(0, self.size - offset))
        self.fetched += length
        return self._file.read(self._offset + offset, length)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`."""
        if offset < 0 or offset + len(target) > self.size:
            raise _short(self.name, self._offset + offset, len(target), self.size - offset)
        self.fetched += len(target)
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
