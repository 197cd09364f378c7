"""What a stage's output depends on, as canonical JSON and a short digest of it."""

from __future__ import annotations


class Runtime:
    """Marks a config field that does not bear on the output's bytes: `Annotated[int, Runtime]`.

    Marked fields (workers, launcher, paths, how often to save) stay out of the fingerprint.
    """
