"""What carries bytes from elsewhere, and what can go wrong on the way."""

from __future__ import annotations

from typing import Protocol

from megatron_bridge.errors import InputError, RetryableError

_AGAIN = "run the same command again{}; what is finished is kept if the place tells ETag or date"


class Transport(Protocol):
    """A file that is elsewhere.

    Errors: `Absent`, `Unusable`, other `InputError`, and `Interrupted`.
    """

    shown: str
    """Its name, without secrets."""

    def begin(self, length: int) -> tuple[int, str, bytes]:
        """Return the file's size and state, and some of its first bytes, at most `length`."""

    def fill(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`."""

    def whole(self, limit: int) -> bytes:
        """Return all of a file of at most `limit` bytes."""


class Interrupted(Exception):
    """A failure that may pass; `done` bytes had arrived before."""

    def __init__(self, reason: str, done: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.done = reason, done


class Absent(InputError):
    """No such file there, or none that one may see."""


class Refused(Absent):
    """A file that is not given, for a `reason`."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            "The file is not given",
            where=name,
            expected="a file that can be read",
            got=reason,
            fix="see that the URL, its user and its signature are right and have not expired",
        )


class Unusable(InputError):
    """An answer that is not the range asked for."""


def missing(name: str) -> Absent:
    """What is told of a file that is not there."""
    return Absent(
        "There is no such file",
        where=name,
        expected="a file that can be read",
        got="nothing there",
        fix="correct the URL; a model's is that of the folder with config.json and the weights",
    )


def unusable(name: str, got: str) -> Unusable:
    """What is told of an answer that is not the range asked for."""
    return Unusable(
        "The server does not give ranges",
        where=name,
        expected="exactly the bytes that were asked for, with the status 206",
        got=got,
        fix="fetch the folder to this disk first, or serve it by a server that gives ranges",
    )


def changed(name: str) -> InputError:
    """What is told of a file that is another one than a moment ago."""
    return InputError(
        "The file changed while it was read",
        where=name,
        expected="the same file from the beginning to the end",
        got="another ETag, date or size",
        fix="run the command again when nobody writes there any more",
    )


def too_large(name: str, limit: int, got: object) -> InputError:
    """What is told of a file beside the weights that is no text any more."""
    return InputError(
        "A file beside the weights is too large",
        where=name,
        expected=f"at most {limit:,} bytes for this and those not yet fetched",
        got=got,
        fix="take it out of the folder, or fetch the folder to this disk",
    )


def shorter(name: str, offset: int, length: int) -> InputError:
    """What is told of a file that ends before the bytes asked for."""
    return InputError(
        "The file is truncated",
        where=f"{name}, byte {offset}",
        expected=f"{length} bytes",
        got="fewer",
        fix="put the whole file there",
    )


def lost(name: str, reason: str, attempts: int) -> RetryableError:
    """What is told when patience ends."""
    return RetryableError(
        "The connection failed",
        where=name,
        expected="an answer",
        got=f"{reason}, {attempts} times in a row",
        fix=_AGAIN.format(""),
    )


def withheld(name: str, reason: str | None) -> RetryableError:
    """What is told of a file that was given, and is not given any more."""
    return RetryableError(
        "The file is not given any more",
        where=name,
        expected="a file that can be read to the end, as it could at the beginning",
        got=reason,
        fix=_AGAIN.format(" when it is there, with a fresh signature or password if need be"),
    )
