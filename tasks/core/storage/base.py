"""What the store asks of a storage. Keys are paths relative to the store's root, with slashes."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tasks.core.record import FileEntry


class Storage(Protocol):
    """Where outputs lie. What changes something is atomic, or harmless when cut off."""

    def read(self, key: str) -> bytes | None:
        """The bytes of an object, or None where there is none."""

    def size(self, key: str) -> int | None:
        """The size of an object in bytes, or None where there is none."""

    def put(self, key: str, data: bytes) -> None:
        """Write or replace an object; after a crash the old or the new one is there, whole."""

    def create(self, key: str, data: bytes) -> bool:
        """Write an object only if there is none; False where one exists. Never half-written."""

    def remove_if(self, key: str, data: bytes) -> bool:
        """Remove an object only while its bytes are `data`; False where they are others."""

    def touch(self, key: str) -> None:
        """Give an object a new stamp (a heartbeat); nothing happens where there is none."""

    def stamp(self, key: str) -> str | None:
        """Something that changes with each `touch` or `put`; None where there is no object."""

    def remove(self, key: str) -> None:
        """Remove an object, or a folder with all that lies in it; nothing where there is none."""

    def place(self, folder: Path, files: list[FileEntry], key: str) -> None:
        """Make the local `folder` the folder `key`: all of it is there afterwards, or nothing."""

    def materialise(self, key: str) -> Path:
        """A local path at which the folder `key` can be read."""

    def children(self, key: str) -> list[str]:
        """Names inside a folder, sorted (for people who look, never to decide what exists)."""
