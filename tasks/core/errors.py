"""The pipeline's errors, and which of them may be retried."""

from __future__ import annotations

from megatron_bridge.errors import (
    ConfigError,
    InputError,
    MappingError,
    PipelineError,
    ProofError,
    RetryableError,
)

__all__ = [
    "ConfigError",
    "InputError",
    "MappingError",
    "PipelineError",
    "ProofError",
    "RetryableError",
    "is_retryable",
]


def is_retryable(error: BaseException) -> bool:
    """True for I/O errors and lost workers; False for what would fail the same way again."""
    return isinstance(error, (RetryableError, OSError))
