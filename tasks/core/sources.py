"""URLs to bytes: plain paths, `file://`, and `package://` (a file inside an installed package)."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from tasks.core.errors import InputError
from tasks.core.fingerprint import DigestCache, sha256_file

Compression = Literal["bz2", "gz", "xz", "zst", "none"]

_MAGIC: dict[bytes, Compression] = {
    b"BZh": "bz2",
    b"\x1f\x8b": "gz",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zst",
    # Frames to be skipped, with which pzstd begins (RFC 8878, 3.1.2).
    **{bytes([byte]) + b"\x2a\x4d\x18": "zst" for byte in range(0x50, 0x60)},
}
_BUFFER = 1 << 20


@dataclass(frozen=True)
class SourceInfo:
    """What a source is by value: it enters the fingerprint in place of where it lies.

    Attributes:
        name: the file's own name.
        bytes: its size.
        sha256: its digest, in hexadecimal.
        path: where it lies on this machine, where it does.
    """

    name: str
    bytes: int
    sha256: str
    path: Path | None

    def identity(self) -> dict[str, Any]:
        """Name, size and digest: all that bears on the bytes."""
        return {"name": self.name, "bytes": self.bytes, "sha256": self.sha256}


def describe(url: str, digests: DigestCache) -> SourceInfo:
    """Size and digest of what a URL names.

    Raises:
        InputError: the scheme is unknown, or the file is missing, empty or no file.
    """
    path = locate(url)
    return SourceInfo(path.name, path.stat().st_size, digests.sha256(path), path)


def fetch(url: str, dest: Path, progress: Callable[..., None], sha256: str | None = None) -> Path:
    """Copy what a URL names to `dest`, and read the copy again to check its digest.

    Args:
        url: a plain path, `file:///absolute/path` or `package://PACKAGE/inner/path`.
        dest: the file to write; its folder exists.
        progress: called as `progress(done, total, unit="bytes")`.
        sha256: the digest that the source must have.

    Raises:
        InputError: see `describe`; or the digest is another one than was asked for.
        OSError: the copy differs from what was read; trying again may help.
    """
    require_digest(url, sha256, copy(locate(url), dest, progress))
    return dest


def copy(source: Path, dest: Path, progress: Callable[..., None]) -> str:
    """Copy a file, read the copy again, and return its digest.

    Raises:
        OSError: the copy differs from what was read; trying again may help.
    """
    total, done, state = source.stat().st_size, 0, hashlib.sha256()
    with open(source, "rb") as reader, open(dest, "wb") as writer:
        while piece := reader.read(_BUFFER):
            state.update(piece)
            writer.write(piece)
            done += len(piece)
            progress(done, total, unit="bytes", note=source.name)
        writer.flush()
        os.fsync(writer.fileno())
    if sha256_file(dest) != state.hexdigest():
        raise OSError(f"The copy {dest} does not hold the bytes that were read from {source}")
    return state.hexdigest()


def require_digest(url: str, expected: str | None, got: str) -> None:
    """Refuse a source whose digest is another one than was asked for.

    Raises:
        InputError: the digests differ, and one was asked for.
    """
    if expected is not None and got != expected:
        raise InputError(
            "The source is not the file that was asked for", where=url,
            expected=f"sha256 {expected}", got=f"sha256 {got}",
            fix="fetch it again, or correct the digest in the recipe",
        )  # fmt: skip


def locate(url: str) -> Path:
    """The local file behind a URL.

    Raises:
        InputError: the scheme is unknown, or the file is missing, empty or no file.
    """
    path = place(url)
    if not path.is_file():
        got = "a folder" if path.is_dir() else "nothing there"
        raise InputError(
            "The source file does not exist", where=url, expected=f"a file at {path}", got=got,
            fix="correct the path",
        )  # fmt: skip
    if path.stat().st_size == 0:
        raise InputError(
            "The source file is empty", where=url, expected="bytes", got=f"0 bytes at {path}",
            fix="fetch the file again",
        )  # fmt: skip
    return path


def place(url: str) -> Path:
    """Where a URL of this machine leads, whatever is there: a file, a folder, nothing.

    Raises:
        InputError: the scheme is unknown, or the package is not installed.
    """
    if "://" not in url:
        return Path(url).expanduser().absolute()
    scheme = url.partition("://")[0].lower()
    if scheme not in _SCHEMES:
        raise InputError(
            "The source has an unknown scheme", where=f"{scheme}://",
            expected=f"a plain path or one of {', '.join(f'{name}://' for name in _SCHEMES)}",
            got=f"{scheme}://", fix="copy the file to this machine and name its path",
        )  # fmt: skip
    return _SCHEMES[scheme](url)


def is_here(url: str) -> bool:
    """Whether a source is on this machine: a path, or a URL that leads to one."""
    scheme, separator, _ = url.partition("://")
    return not separator or scheme.lower() in _SCHEMES


def compression(path: Path) -> Compression:
    """How a file is compressed, told by its first bytes and not by its name."""
    with open(path, "rb") as file:
        head = file.read(8)
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    return "none"


def _file(url: str) -> Path:
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute():
        raise InputError(
            "A file URL names a file on this machine", where=url, expected="file:///absolute/path",
            got=f"host {parts.netloc!r}", fix="write three slashes before the absolute path",
        )  # fmt: skip
    return path


def _package(url: str) -> Path:
    package, _, inner = url.partition("://")[2].partition("/")
    if not re.fullmatch(r"[A-Za-z_]\w*", package) or not inner:
        raise InputError(
            "A package URL names a top-level package and a file in it", where=url,
            expected="package://PACKAGE/inner/path", got=url,
        )  # fmt: skip
    # find_spec of a top-level name looks it up without running any of its code.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "The package is not installed", where=url, expected=f"an installed package {package}",
            got="none", fix=f"pip install {package}",
        )  # fmt: skip
    candidates = []
    for folder in map(Path, spec.submodule_search_locations):
        path = (folder / inner).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise InputError(
                "The path leads out of its package", where=url, expected=f"a file under {folder}",
                got=path, fix="name the file by a file:// URL if it is meant",
            )  # fmt: skip
        candidates.append(path)
    return next((path for path in candidates if path.exists()), candidates[0])


_SCHEMES: dict[str, Callable[[str], Path]] = {"file": _file, "package": _package}
