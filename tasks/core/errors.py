"""The pipeline's errors, and which of them may be retried."""

from __future__ import annotations

import errno

from megatron_bridge.errors import (
    ConfigError,
    InputError,
    MappingError,
    PipelineError,
    ProofError,
    RetryableError,
    refused,
)

__all__ = [
    "ConfigError",
    "InputError",
    "MappingError",
    "PipelineError",
    "ProofError",
    "RetryableError",
    "disk_is_full",
    "is_retryable",
    "refused",
]


def is_retryable(error: BaseException) -> bool:
    """True for I/O errors and lost workers; False for what would fail the same way again."""
    return isinstance(error, (RetryableError, OSError))


def disk_is_full(error: BaseException | None) -> bool:
    """True where an error, or one of those that led to it, says that there is no room left."""
    # Writers in C++ and Rust lose the errno and keep only its words.
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return True
        if "No space left on device" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
