"""The store: `{root}/{stage}/{label}/{fingerprint}/` with `artifact.json`, `data/` and `work/`.

An output is there when its record is there and every file of the record has its size. The record
is written last, by one atomic call; whatever lies about without one is removed or built again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tasks.core.artifacts import Artifact
from tasks.core.errors import ConfigError, InputError, ProofError
from tasks.core.fingerprint import DigestCache, sha256_file
from tasks.core.lease import Lease
from tasks.core.record import RECORD_NAME, FileEntry, InputEntry, Record, decode
from tasks.core.storage.base import Storage
from tasks.core.storage.local import LocalStorage, remove_path, sync_file

ArtifactT = TypeVar("ArtifactT", bound=Artifact)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Address:
    """Where an output belongs, and all that its fingerprint was made from."""

    stage: str
    version: int
    label: str
    fingerprint: str
    identity: dict[str, Any]
    inputs: tuple[InputEntry, ...]

    @property
    def key(self) -> str:
        """The output's folder, relative to the store's root."""
        return f"{self.stage}/{self.label}/{self.fingerprint}"


@dataclass(frozen=True)
class Work:
    """A stage's local folders: `out` becomes `data/`, `scratch` outlives failed attempts."""

    folder: Path

    @property
    def out(self) -> Path:
        """Empty at the start of each attempt."""
        return self.folder / "out"

    @property
    def scratch(self) -> Path:
        """Resume points; gone after sealing."""
        return self.folder / "scratch"


def store_root(root: Path | str | None = None) -> Path:
    """The store's folder: the argument, else `MEGALINE_ROOT`, else `.megaline` right here."""
    return Path(root or os.environ.get("MEGALINE_ROOT") or ".megaline").expanduser().resolve()


class Store:
    """Finds, builds into, and seals output folders."""

    def __init__(self, root: Path | str | None = None, storage: Storage | None = None) -> None:
        self.root = store_root(root)
        if self.root.exists() and not self.root.is_dir():
            raise ConfigError(
                "The store is no folder", where=self.root, expected="a folder, or nothing yet",
                got="a file", fix="name another place with --root or MEGALINE_ROOT",
            )  # fmt: skip
        self.storage: Storage = storage or LocalStorage(self.root)
        self.digests = DigestCache(self.root / "digests.json")

    def path(self, address: Address) -> Path:
        """The output's folder as people see it."""
        return self.root / address.key

    def find(self, address: Address, output: type[ArtifactT]) -> ArtifactT | None:
        """The sealed output of an address, or None; reads the record and the files' sizes only."""
        text = self.storage.read(f"{address.key}/{RECORD_NAME}")
        if text is None:
            return None
        try:
            record = decode(text, self.path(address))
        except InputError as error:
            _log.warning("not taken: %s", error)
            return None
        wrong = self.misfits(record, f"{address.key}/data")
        if wrong or record.fingerprint != address.fingerprint:
            _log.warning("not taken: %s: %s", self.path(address), "; ".join(wrong) or "other stage")
            return None
        return output(path=self.storage.materialise(address.key), record=record)

    def misfits(self, record: Record, data: str, deep: bool = False) -> list[str]:
        """What is wrong with the record's files under the key `data`, in words.

        `deep` hashes them again; otherwise only their sizes are looked at.
        """
        wrong = []
        for entry in record.files:
            size = self.storage.size(f"{data}/{entry.path}")
            if size is None:
                wrong.append(f"{entry.path} is missing")
            elif size != entry.bytes:
                wrong.append(f"{entry.path} has {size} bytes, not {entry.bytes}")
            elif deep:
                found = sha256_file(self.storage.materialise(data) / entry.path)
                if found != entry.sha256:
                    wrong.append(f"{entry.path} has SHA-256 {found}, not {entry.sha256}")
        return wrong

    def lease(self, address: Address) -> Lease:
        """The right to build an output; a context manager that waits until it has it."""
        return Lease(self.storage, f"{address.key}/lease.json")

    def work(self, address: Address) -> Work:
        """Where a stage works, whether or not it does."""
        return Work(self._work_folder(address))

    def open_work(self, address: Address) -> Work:
        """An empty `out` and the `scratch` that an earlier attempt may have left."""
        for name in self.storage.children(address.key):
            if name.startswith(f".{RECORD_NAME}.") or name == "data.partial":
                self.storage.remove(f"{address.key}/{name}")
        work = self.work(address)
        remove_path(work.out)
        work.out.mkdir(parents=True)
        work.scratch.mkdir(exist_ok=True)
        return work

    def seal(
        self, address: Address, work: Work, files: list[FileEntry], record: Record, lease: Lease
    ) -> None:
        """Place the files, write the record, drop the working folders, in this order.

        Raises:
            RetryableError: the lease is no longer ours; nothing was placed.
        """
        lease.confirm()
        self.storage.remove(f"{address.key}/{RECORD_NAME}")
        self.storage.remove(f"{address.key}/data")
        self.storage.place(work.out, files, f"{address.key}/data")
        self.storage.put(f"{address.key}/{RECORD_NAME}", record.encode())
        self.clean(address)

    def unfinished(self, address: Address) -> bool:
        """True while someone builds there, or where a killed process left its working folders."""
        lease = self.storage.size(f"{address.key}/lease.json")
        return lease is not None or self._work_folder(address).exists()

    def drop_out(self, address: Address) -> None:
        """Give the disk back what a failed attempt wrote; resume points stay."""
        work = self.work(address)
        remove_path(work.out)
        self.storage.remove(f"{address.key}/data.partial")
        with contextlib.suppress(OSError):
            # Both fail, and should, where scratch holds something.
            work.scratch.rmdir()
            work.folder.rmdir()

    def clean(self, address: Address) -> None:
        """Remove what building leaves beside a sealed output."""
        remove_path(self._work_folder(address))

    def records(self, stage: str) -> list[Record]:
        """Every readable record of a stage (for comparison; `find` decides what exists)."""
        found = []
        for label in self.storage.children(stage):
            for fingerprint in self.storage.children(f"{stage}/{label}"):
                key = f"{stage}/{label}/{fingerprint}/{RECORD_NAME}"
                if (text := self.storage.read(key)) is not None:
                    found.append(decode(text, self.root / key))
        return found

    def _work_folder(self, address: Address) -> Path:
        scratch = os.environ.get("MEGALINE_SCRATCH")
        if not scratch:
            return self.root / address.key / "work"
        # Two stores may share one scratch disk.
        store = hashlib.sha256(str(self.root).encode()).hexdigest()[:12]
        return Path(scratch).expanduser().resolve() / store / address.key


def list_files(folder: Path, progress: Callable[[int, int], None] | None = None) -> list[FileEntry]:
    """Hash, sync and write-protect every file under a folder; sorted by path.

    Raises:
        ProofError: there is no file, or something that is neither a file nor a folder.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    for path in paths:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise ProofError(
                "An output holds something that is not a file", where=path,
                expected="regular files", got="a link or a special file", fix="copy what it names",
            )  # fmt: skip
    if not paths:
        raise ProofError("The stage wrote no file", where=folder, expected="at least one file")
    total = sum(path.stat().st_size for path in paths)
    return list(_hashed(folder, paths, total, progress))


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it where that cannot be; never write into the target."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copy2(source, target)


def _hashed(
    folder: Path, paths: list[Path], total: int, progress: Callable[[int, int], None] | None
) -> Iterable[FileEntry]:
    done = 0
    for path in paths:
        sha256 = sha256_file(path)
        sync_file(path)
        mode = path.stat().st_mode
        if mode & 0o222:
            path.chmod(mode & ~0o222)
        size = path.stat().st_size
        done += size
        if progress:
            progress(done, total)
        yield FileEntry(path=path.relative_to(folder).as_posix(), bytes=size, sha256=sha256)
