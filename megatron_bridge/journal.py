"""What a long conversion has finished, so that the same command after a kill goes on from there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from megatron_bridge.checkpoint import sync_folder
from megatron_bridge.errors import ConfigError, InputError, MappingError, ProofError


class Journal:
    """Finished pieces of work by name, each in a small file written in one atomic step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def get(self, name: str) -> Any:
        """Return what was noted of a finished piece, or None."""
        try:
            return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def note(self, name: str, result: Any) -> None:
        """Keep a piece's result; the piece itself must be on the disk already."""
        partial = self.folder / f".{name}.partial"
        with partial.open("w", encoding="utf-8") as file:
            json.dump(result, file)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(self.folder / f"{name}.json")


@contextmanager
def unfinished(
    out: Path, identity: Mapping[str, Any], scratch: Path | None = None
) -> Iterator[tuple[Path, Journal]]:
    """Yield a folder that becomes `out` when the block succeeds, and its journal.

    A block that is killed leaves the folder, and one with the same identity finds it again; any
    other begins anew. A block that fails for good removes it.

    Args:
        out: a new or empty folder.
        identity: everything that the output depends on.
        scratch: where the folder lies until then, on the same disk as `out`; beside it if None.

    Raises:
        ConfigError: `out` is not empty, or another process is at work on it.
        InputError: the folder cannot be made.
    """
    out = out.resolve()  # a link is not moved onto, and "." has no name
    refuse_a_full(out)
    work = _work(out, scratch)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            "The output folder cannot be made",
            where=out,
            expected="a folder that can be written to",
            got=error,
            fix="choose another folder, or see to its parent",
        ) from error
    if os.path.ismount(out) or work.stat().st_dev != out.parent.stat().st_dev:
        raise ConfigError(
            "The output cannot be moved to its place",
            where=out,
            expected="a folder that is no mount point, on the disk where it is prepared",
            got=f"another disk than that of {work}",
            fix="name a folder in it",
        )
    with (work / "lock").open("w") as lock:
        _take(lock, out)
        refuse_a_full(out)  # another process may have filled it meanwhile
        mark = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        told = work / "identity"
        if not (work / "data").is_dir() or not told.is_file() or told.read_text() != mark:
            _empty(work)
            told.write_text(mark)
        (work / "data").mkdir(exist_ok=True)
        try:
            yield work / "data", Journal(work / "journal")
        except (ConfigError, InputError, MappingError, ProofError):
            # What a user mends makes another conversion of it.
            shutil.rmtree(work, ignore_errors=True)
            raise
        # From here on the journal speaks of nothing: it must not outlive its data.
        told.unlink()
        _sync(work / "data")
        sync_folder(work)
        try:
            (work / "data").rename(out)
        except OSError:
            told.write_text(mark)  # all is done but this: the same command must find it
            raise
        sync_folder(out.parent)
        shutil.rmtree(work, ignore_errors=True)


def interrupted(out: Path | None) -> str:
    """Say what an interrupted block has left beside its output."""
    work = out and _work(out)
    if work is None or not (work / "journal").is_dir():
        return "interrupted"
    return f"interrupted; what is finished is kept in {work}: the same command goes on from there"


def state_of(paths: Iterable[Path]) -> list[list[Any]]:
    """Return name, size, time of change and inode of files: the same sizes may be another model."""
    stats = [(path, path.stat()) for path in sorted(paths)]
    return [[str(path), s.st_size, s.st_mtime_ns, s.st_ino] for path, s in stats]


def refuse_a_full(out: Path, *sources: Path) -> None:
    """Refuse an output folder that holds something, or lies in what is read.

    Raises:
        ConfigError: it does.
    """
    for source in sources:
        if out.resolve().is_relative_to(source.resolve()):
            raise ConfigError(
                "The output folder lies in what is read",
                where=out,
                expected=f"a folder outside of {source}",
                got="one in it",
                fix="choose another folder",
            )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            "The output folder is not empty",
            where=out,
            expected="a new or empty folder",
            got="files in it" if out.is_dir() else "a file",
            fix="choose another folder; nothing is ever written over a checkpoint",
        )


def _work(out: Path, scratch: Path | None = None) -> Path:
    return (scratch or out.parent) / f".{out.name}.unfinished"


def _sync(folder: Path) -> None:
    """Make every file of a folder durable, and the folder itself."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(folder)


def _take(lock: IO[str], out: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            "Another process is at work on this output",
            where=out,
            expected="one conversion at a time",
            got="a lock that is held",
            fix="wait for it, or choose another folder",
        ) from error


def _empty(work: Path) -> None:
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()
