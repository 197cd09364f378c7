"""Bytes from any other filesystem that fsspec knows, by ranges."""

from __future__ import annotations

from typing import Any

from megatron_bridge.errors import ConfigError
from megatron_bridge.sources import oss
from megatron_bridge.sources.address import Address
from megatron_bridge.sources.transport import (
    Interrupted,
    Refused,
    missing,
    shorter,
    too_large,
    unusable,
)

_STATE = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "mtime", "created")


class File:
    """A file of a filesystem."""

    def __init__(self, address: Address) -> None:
        self.shown = address.shown
        self._fs, self._path = connect(address)
        self._greedy = address.scheme == "oss"

    def begin(self, length: int) -> tuple[int, str, bytes]:
        """Return size and state, and no bytes: asking for them costs no content."""
        info = _asked(self.shown, self._fs.info, self._path)
        if info.get("type") != "file" or info.get("size") is None:
            raise missing(self.shown)
        state = " ".join(str(info[key]) for key in _STATE if info.get(key))
        return int(info["size"]), state, b""

    def fill(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`."""
        end = offset + len(target)
        data = _asked(self.shown, self._fs.cat_file, self._path, start=offset, end=end)
        # ossfs passes `end` on as the last byte, and so gives one more; the others are right.
        if self._greedy and len(data) == len(target) + 1:
            data = data[:-1]
        if len(data) < len(target):
            raise shorter(self.shown, offset, len(target))
        if len(data) > len(target):
            raise unusable(self.shown, f"{len(data)} bytes for {len(target)}")
        target[:] = data

    def whole(self, limit: int) -> bytes:
        """Return all of a file of at most `limit` bytes."""
        size, _, _ = self.begin(0)
        if size > limit:
            raise too_large(self.shown, limit, size)
        data = bytearray(size)
        if data:
            self.fill(0, memoryview(data))
        return bytes(data)


def connect(address: Address) -> tuple[Any, str]:
    """Return the filesystem of an address, and the path in it.

    Raises:
        ConfigError: no such filesystem, or its credentials are missing.
    """
    import fsspec

    # An old listing does not tell that a file has changed; a second will do for many shards.
    given: dict[str, Any] = {"listings_expiry_time": 1}
    if address.scheme == "oss":
        given |= oss.credentials()
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(address.url, **given)
    except (ValueError, ImportError) as error:
        lacking = isinstance(error, ImportError)
        if lacking and address.scheme == "oss":
            raise oss.lacking() from None
        raise ConfigError(
            "There is no reader for this kind of URL",
            where=address.shown,
            expected="file://, package://, http://, https://, oss://, or another protocol that "
            "fsspec knows, and its package",
            got=f"{address.scheme}://{', whose package is missing' if lacking else ''}",
            fix="pip install what it needs, such as s3fs" if lacking else "correct the protocol",
        ) from None
    return found


def listed(address: Address) -> dict[str, int]:
    """Return the files of a folder by name, with their sizes in bytes."""
    fs, path = connect(address)
    entries = _asked(address.shown, fs.ls, path, detail=True)
    return {
        str(entry["name"]).rstrip("/").rpartition("/")[2]: int(entry["size"] or 0)
        for entry in entries
        if entry["type"] == "file"
    }


def found(address: Address, depth: int | None = None) -> dict[str, tuple[int, str]]:
    """Return the files below a folder, down to `depth` folders, by their paths in it.

    Returns:
        Size in bytes and ETag, else checksum or date, as far as one is told. A file that the
        address itself names has the path "".
    """
    if address.scheme == "oss":
        every = oss.found(address)
        return {name: told for name, told in every.items() if not depth or name.count("/") < depth}
    fs, path = connect(address)
    root, files, waiting = path.strip("/"), {}, [(path, 1)]
    while waiting:
        folder, level = waiting.pop()
        for entry in _asked(address.shown, fs.ls, folder, detail=True):
            name = str(entry["name"]).strip("/")
            if entry["type"] == "file":
                state = next((str(entry[key]) for key in _STATE if entry.get(key)), "")
                inner = name.removeprefix(root).strip("/")
                files[inner] = int(entry["size"] or 0), state.strip('"')
            # Some list a folder in itself.
            elif name != folder.strip("/") and (depth is None or level < depth):
                waiting.append((str(entry["name"]), level + 1))
    return files


def _asked(shown: str, function: Any, *given: Any, **named: Any) -> Any:
    # Errors of a filesystem may name the whole URL, secrets included: only their kind is told.
    try:
        return function(*given, **named)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise missing(shown) from None
    except PermissionError as error:
        raise Refused(shown, type(error).__name__) from None
    # Each client has exceptions of its own, which need not be an OSError (oss2's are not).
    except Exception as error:
        raise Interrupted(type(error).__name__) from None
