"""The errors a user may meet: one paragraph with what, where, expected, got and what to do.

They live here, not in `tasks`, because `megatron_bridge` may not import `tasks`.
"""

from __future__ import annotations

from typing import Self


class PipelineError(Exception):
    """Base of every error that is told to the user without a traceback.

    `exit_code` is the process's exit status: 1 a proof or a gate does not hold, 2 bad input,
    3 failed and may be retried.
    """

    exit_code = 3

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        expected: object = None,
        got: object = None,
        fix: str | None = None,
    ) -> None:
        said = [None if part is None else str(part) for part in (where, expected, got)]
        self.what, self.fix = what.rstrip("."), fix and fix.rstrip(".")
        self.where, self.expected, self.got = said
        words = ("Where", "Expected", "Got", "What to do")
        parts = zip(words, (*said, self.fix), strict=True)
        told = [f"{word}: {part}." for word, part in parts if part is not None]
        super().__init__(" ".join([f"{self.what}.", *told]))

    def at(self, where: object) -> Self:
        """Return the same error at a place that is better known."""
        return type(self)(
            self.what, where=where, expected=self.expected, got=self.got, fix=self.fix
        )


class ConfigError(PipelineError):
    """A recipe, an override or an argument is wrong; never retried."""

    exit_code = 2


class InputError(PipelineError):
    """A given file or folder is missing, damaged or of the wrong kind; never retried."""

    exit_code = 2


class MappingError(PipelineError):
    """Tensors and rows do not match one to one; never retried."""

    exit_code = 2


class ProofError(PipelineError):
    """A proof, an invariant or a gate does not hold; never retried."""

    exit_code = 1


class RetryableError(PipelineError):
    """Something outside failed (a lost rank, a busy lease, a full disk) and may work next time."""

    exit_code = 3


def refused(error: OSError) -> RetryableError:
    """What the operating system refused (a read-only disk, a missing right), in one paragraph."""
    return RetryableError(
        "The operating system refused",
        where=error.filename or "a file or a connection",
        expected="that it can be read and written",
        got=error.strerror or error,
        fix="mend it and run again; what is finished will be reused",
    )
