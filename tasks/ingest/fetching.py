"""Files elsewhere brought to this disk; what had arrived when a process died is kept."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from megatron_bridge.sources.address import Address
from megatron_bridge.sources.filesystem import File
from megatron_bridge.sources.http import Http
from megatron_bridge.sources.remote import RemoteFile, patiently
from megatron_bridge.sources.transport import Absent
from tasks.core.errors import InputError
from tasks.core.store import link_or_copy
from tasks.ingest.listing import Entry

_BLOCK = 1 << 24


def fetch(
    entry: Entry, address: Address, dest: Path, scratch: Path, progress: Callable[[int], None]
) -> str:
    """Bring a file from elsewhere, and return its SHA-256.

    It grows in `scratch` under a name that is made from its place and state, so that the same file
    goes on where it was, and another one begins anew. Without ranges or state every attempt does.

    Args:
        entry: the file, as it was listed.
        address: where it lies.
        dest: the file to write; its folder exists.
        scratch: a folder that outlives a killed process, on the same disk.
        progress: called with the bytes that are there.

    Raises:
        InputError: it is not there any more, or its size is another one.
        RetryableError: the connection fails again and again.
    """
    known = f"{address.shown} {address.revision} {entry.bytes} {entry.state}"
    part = scratch / f"{hashlib.sha256(known.encode()).hexdigest()[:32]}.part"
    if not entry.state:
        part.unlink(missing_ok=True)
    try:
        if entry.by_ranges and entry.bytes is not None:
            _by_ranges(address, entry.bytes, part, progress)
        else:
            _whole(address, part, progress)
    except Absent as error:
        raise InputError(
            "A source is not given any more", where=entry.shown, got=error.got,
            expected="the file that was listed", fix="run again, or correct ingest.source",
        ) from None  # fmt: skip
    size = part.stat().st_size
    if size == 0 or entry.bytes not in (None, size):
        raise changed(entry.shown, f"{size} bytes")
    link_or_copy(part, dest)
    with open(dest, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def changed(where: str, got: str) -> InputError:
    """What is told of a source that is not what was listed."""
    return InputError(
        "The source changed after it was listed", where=where, got=got,
        expected="the same files from the plan to the end of the run",
        fix="run again when nobody writes there any more",
    )  # fmt: skip


def _by_ranges(address: Address, size: int, part: Path, progress: Callable[[int], None]) -> None:
    # A whole one has been linked to its place, which may be write-protected by now.
    if part.is_file() and part.stat().st_size == size:
        return
    fill = _filler(address, size)
    with open(part, "ab") as file:
        done = file.tell()
        while done < size:
            block = memoryview(bytearray(min(_BLOCK, size - done)))
            fill(done, block)
            file.write(block)
            done += len(block)
            progress(done)
        file.flush()
        os.fsync(file.fileno())


def _filler(address: Address, size: int) -> Callable[[int, memoryview], None]:
    if not address.is_http:
        file = File(address)
        return lambda offset, block: patiently(
            functools.partial(file.fill, offset, block), address.shown
        )
    remote = RemoteFile(address)
    if remote.size != size:
        raise changed(address.shown, f"{remote.size} bytes and not {size}")
    return remote.read_into


def _whole(address: Address, part: Path, progress: Callable[[int], None]) -> None:
    file = Http(address)

    def attempt() -> None:
        part.unlink(missing_ok=True)
        with open(part, "wb") as target:

            def write(piece: bytes) -> None:
                target.write(piece)
                progress(target.tell())

            file.pour(write)
            target.flush()
            os.fsync(target.fileno())

    patiently(attempt, file.shown)
