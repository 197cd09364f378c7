"""Progress on a terminal."""

from __future__ import annotations

import sys
import time


class Bar:
    """One line of progress on a terminal's standard error; silent when piped."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._next = 0.0

    def __call__(self, done: int, total: int, unit: str = "tensors", note: object = "") -> None:
        """Show how much is done."""
        now = time.monotonic()
        if sys.stderr.isatty() and (now >= self._next or done == total):
            self._next = now + 0.2
            print(f"\r{self._verb} {done}/{total} {unit} {note}\033[K", end="", file=sys.stderr)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
