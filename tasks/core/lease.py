"""One builder at a time: a lease object beside the output, freed at once when its holder is dead.

On the same host a holder is dead when its process is gone (or its pid belongs to a process with
another start time). Another host's holder is dead when three of its heartbeats did not come, as
seen by this host's own steady clock: no two machines' clocks are compared.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

from tasks.core.errors import RetryableError
from tasks.core.storage.base import Storage

HEARTBEAT_SECONDS = 10.0
MISSED_HEARTBEATS = 3
_POLL_SECONDS = 0.2

_log = logging.getLogger(__name__)
_held: set[Lease] = set()


class Lease:
    """A context manager that waits for the lease `key`, keeps it alive, and gives it back."""

    def __init__(self, storage: Storage, key: str, heartbeat: float = HEARTBEAT_SECONDS) -> None:
        self._storage = storage
        self._key = key
        self._heartbeat = heartbeat
        self._content = b""
        self._stopped = threading.Event()
        self._revoked = False

    def __enter__(self) -> Lease:
        content = json.dumps(_myself() | {"heartbeat": self._heartbeat, "token": uuid.uuid4().hex})
        self._content = content.encode()
        watch = _Watch()
        while not self._storage.create(self._key, self._content):
            current = self._storage.read(self._key)
            if current is None:
                continue
            if watch.is_dead(current, self._storage.stamp(self._key)):
                if self._storage.remove_if(self._key, current):
                    _log.warning("freed the lease %s: its holder is gone", self._key)
                continue
            watch.tell(self._key, current)
            time.sleep(_POLL_SECONDS)
        _held.add(self)
        threading.Thread(target=self._beat, name=f"lease {self._key}", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give the lease back; nothing happens where another holds it by now."""
        self._stopped.set()
        _held.discard(self)
        self._storage.remove_if(self._key, self._content)

    def confirm(self) -> None:
        """Check, right before a commit, that the lease is still ours.

        Raises:
            RetryableError: this process is about to end, or slept so long that another took it.
        """
        if self._revoked or not self.is_ours():
            raise RetryableError(
                "The lease was lost while the stage ran",
                where=self._key,
                expected="this process as its holder",
                got="a signal to end" if self._revoked else "another holder, after a long sleep",
                fix="run again; what the other process sealed will be reused",
            )

    def is_ours(self) -> bool:
        """True while no other process has taken it."""
        return self._storage.read(self._key) == self._content

    def revoke(self) -> None:
        """Let `confirm` fail from now on, but keep others out until `release`."""
        self._revoked = True

    def _beat(self) -> None:
        while not self._stopped.wait(self._heartbeat):
            if self.is_ours():
                self._storage.touch(self._key)


def held() -> list[Lease]:
    """Every lease of this process (for a signal handler that is about to exit)."""
    return list(_held)


class _Watch:
    """What a waiter has seen of a lease that another holds."""

    def __init__(self) -> None:
        self._seen: tuple[bytes, str | None] | None = None
        self._since = 0.0
        self._told: bytes | None = None

    def is_dead(self, content: bytes, stamp: str | None) -> bool:
        if self._seen != (content, stamp):
            self._seen, self._since = (content, stamp), time.monotonic()
        holder = _parse(content)
        if all(holder.get(key) == value for key, value in _host().items()):
            return _start_time(int(holder.get("pid", 0))) != holder.get("started")
        patience = MISSED_HEARTBEATS * float(holder.get("heartbeat", HEARTBEAT_SECONDS))
        return time.monotonic() - self._since > patience

    def tell(self, key: str, content: bytes) -> None:
        if self._told != content:
            self._told = content
            holder = _parse(content)
            _log.warning(
                "waiting for %s: process %s on %s builds it",
                key, holder.get("pid"), holder.get("host"),
            )  # fmt: skip


def _parse(content: bytes) -> dict[str, Any]:
    try:
        holder = json.loads(content)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _myself() -> dict[str, Any]:
    return _host() | {"pid": os.getpid(), "started": _start_time(os.getpid())}


@functools.cache
def _host() -> dict[str, Any]:
    # Containers of one machine share its boot id, and may share its name, but not the pids.
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot, namespace = "", ""
    return {"host": socket.gethostname(), "boot": boot, "pid_namespace": namespace}


def _start_time(pid: int) -> str | None:
    """When a process started, as the kernel tells it; None where it is gone or a zombie."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return "alive"
    return "alive"
