"""A folder on a disk or a NAS as a storage."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from tasks.core.record import FileEntry


class LocalStorage:
    """Objects are files under `root`; writes go to a temporary name, are synced, then renamed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, key: str) -> bytes | None:
        """The bytes of a file, or None where there is none."""
        try:
            return (self.root / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def size(self, key: str) -> int | None:
        """The size of a regular file in bytes, or None where there is none."""
        path = self.root / key
        return path.stat().st_size if path.is_file() else None

    def put(self, key: str, data: bytes) -> None:
        """Write or replace a file by one rename."""
        with self._written(key, data) as temporary:
            os.replace(temporary, self.root / key)
            sync_folder((self.root / key).parent)

    def create(self, key: str, data: bytes) -> bool:
        """Write a file only if there is none: `link` fails where the name exists."""
        with self._written(key, data) as temporary:
            try:
                os.link(temporary, self.root / key)
            except FileExistsError:
                return False
            sync_folder((self.root / key).parent)
            return True

    def remove_if(self, key: str, data: bytes) -> bool:
        """Remove a file only while its bytes are `data`; removals exclude each other by `flock`."""
        with open(self.root / ".lock", "ab") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if self.read(key) != data:
                return False
            os.unlink(self.root / key)
            return True

    def touch(self, key: str) -> None:
        """Set a file's mtime to now."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.root / key)

    def stamp(self, key: str) -> str | None:
        """A file's inode and mtime in nanoseconds."""
        try:
            status = (self.root / key).stat()
        except FileNotFoundError:
            return None
        return f"{status.st_ino}-{status.st_mtime_ns}"

    def remove(self, key: str) -> None:
        """Remove a file or a whole folder."""
        remove_path(self.root / key)

    def place(self, folder: Path, files: list[FileEntry], key: str) -> None:
        """Rename `folder`; from another filesystem, copy beside the target first."""
        target = self.root / key
        if folder.stat().st_dev != target.parent.stat().st_dev:
            partial = target.with_name(f"{target.name}.partial")
            remove_path(partial)
            for entry in files:
                (partial / entry.path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(folder / entry.path, partial / entry.path)
                sync_file(partial / entry.path)
            folder = partial
        for parent, _, _ in os.walk(folder):
            sync_folder(Path(parent))
        os.rename(folder, target)
        sync_folder(target.parent)

    def materialise(self, key: str) -> Path:
        """The folder itself."""
        return self.root / key

    def children(self, key: str) -> list[str]:
        """Names inside a folder, sorted."""
        path = self.root / key
        return sorted(os.listdir(path)) if path.is_dir() else []

    @contextlib.contextmanager
    def _written(self, key: str, data: bytes) -> Iterator[Path]:
        """A synced temporary file beside `key` that is gone afterwards."""
        target = self.root / key
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Wait until a file's bytes are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until a folder's entries are on the disk."""
    sync_file(path)


def remove_path(path: Path) -> None:
    """Remove a file or a folder tree; nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
