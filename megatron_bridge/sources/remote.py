"""Files elsewhere, read by byte ranges, with patience for what passes."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable
from typing import Any, TypeVar

from megatron_bridge.sources.address import Address
from megatron_bridge.sources.filesystem import File
from megatron_bridge.sources.http import Http
from megatron_bridge.sources.transport import (
    Absent,
    Interrupted,
    Transport,
    Unusable,
    lost,
    shorter,
    withheld,
)

WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt while nothing arrives."""
_FIRST = 8
"""Bytes that come with a file's size: where a safetensors header's length stands."""

T = TypeVar("T")


class Seen:
    """What one run has seen of a model elsewhere, whoever opens its files."""

    def __init__(self) -> None:
        self.given: set[str] = set()
        """Names of files that could be read."""
        # Where neither ETag nor date is told, a later run may find another model: it must not
        # believe that it goes on with this one.
        self.unknown = secrets.token_hex(16)
        """Stands for a state that is not told; another one in each run."""


class RemoteFile:
    """A file at a URL that gives any range of its bytes, exactly or not at all.

    Raises:
        InputError: no such file, one that was never given, or a server without ranges.
        RetryableError: connections fail again and again, or a file is not given any more, or not
            by ranges.
    """

    def __init__(self, address: Address, seen: Seen | None = None) -> None:
        seen = seen or Seen()
        self._transport = transport(address)
        self.name = self._transport.shown
        begin = self._transport.begin
        if self.name in seen.given:
            begin = functools.partial(self._lasting, begin)
        self.size, state, self._first = patiently(lambda: begin(_FIRST), self.name)
        seen.given.add(self.name)
        self.state = f"{state or seen.unknown} {address.revision}".rstrip()
        self.fetched = len(self._first)
        """Bytes that have arrived so far."""

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        data = bytearray(length)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`."""
        if offset < 0 or offset + len(target) > self.size:
            raise shorter(self.name, offset, len(target))
        known = self._first[offset : offset + len(target)]
        target[: len(known)] = known
        done, failures = len(known), 0
        while done < len(target):
            try:
                self._lasting(self._transport.fill, offset + done, target[done:])
                arrived = len(target) - done
            except Interrupted as error:
                arrived = error.done
                failures = 1 if arrived else failures + 1
                _wait(failures, error, self.name)
            done += arrived
            self.fetched += arrived

    def close(self) -> None:
        """Connections wait for the next file of any thread, in the client that all share."""

    def _lasting(self, step: Callable[..., T], *given: Any) -> T:
        """Do a step with a file that could be read before: what is refused now may pass."""
        try:
            return step(*given)
        except Absent as error:
            raise withheld(self.name, error.got) from None
        except Unusable as error:
            raise Interrupted(f"no range but {error.got}") from None


def transport(address: Address) -> Transport:
    """Return what carries the bytes of an address."""
    return Http(address) if address.is_http else File(address)


def patiently(step: Callable[[], T], name: str) -> T:
    """Return what a step returns, which is done again when it fails in passing.

    Raises:
        RetryableError: it fails again and again.
    """
    failures = 0
    while True:
        try:
            return step()
        except Interrupted as error:
            failures += 1
            _wait(failures, error, name)


def _wait(failures: int, error: Interrupted, name: str) -> None:
    if failures > len(WAITS):
        raise lost(name, error.reason, failures) from None
    time.sleep(WAITS[failures - 1])
