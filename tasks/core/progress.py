"""Progress of the running stages: one line on a terminal, and wherever else a listener sends it."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable

Listener = Callable[[float, str], None]

_TERMINAL_SECONDS = 0.1
_LISTENER_SECONDS = 0.5

_lock = threading.Lock()
_lines: dict[str, str] = {}


class Progress:
    """What a stage calls with `(done, total, unit, note)`; cheap enough for every item.

    Args:
        stage: the name shown in front.
        listener: told the fraction done (0 to 1) and the text, at most twice a second.
    """

    def __init__(self, stage: str, listener: Listener | None = None) -> None:
        self._stage = stage
        self._listener = listener
        self._shown = self._told = 0.0

    def __call__(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        """Tell how far the stage is. `total` 0 means unknown."""
        now = time.monotonic()
        last = done >= total > 0
        if now - self._shown < _TERMINAL_SECONDS and not last:
            return
        self._shown = now
        text = " ".join(filter(None, [f"{done:,g}/{total:,g}" if total else f"{done:,g}", unit]))
        fraction = min(done / total, 1.0) if total else 0.0
        _draw(self._stage, f"{self._stage} {fraction:4.0%}  {text}  {note}".rstrip())
        if self._listener and (now - self._told >= _LISTENER_SECONDS or last):
            self._told = now
            self._listener(fraction, f"{text} {note}".strip())

    def close(self) -> None:
        """Take the stage off the terminal's line."""
        _draw(self._stage, None)


def clear() -> None:
    """Wipe the terminal's progress line, so that a full line can be printed in its place."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()


def _draw(stage: str, line: str | None) -> None:
    if not sys.stderr.isatty():
        return
    with _lock:
        _lines.pop(stage, None)
        if line is not None:
            _lines[stage] = line
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r\x1b[2K{' | '.join(sorted(_lines.values()))[:width]}")
        sys.stderr.flush()
