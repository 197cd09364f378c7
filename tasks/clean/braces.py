"""Which closing braces belong to which opening ones, found in linear time."""

from __future__ import annotations

import re

_BRACES = re.compile(r"\{\{+|\}\}+")


class BracePairs:
    """The pairs of braces of a text.

    Args:
        text: wikitext.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: dict[int, int] | None = None

    def end_of(self, start: int) -> int | None:
        """Where the `{{` that opens at `start` is closed; None where it never is."""
        if self._ends is None:
            depth = 0
            for match in _BRACES.finditer(self._text, start):
                depth += len(match[0]) if match[0][0] == "{" else -len(match[0])
                if depth <= 0:
                    return match.end() + depth
            # One that never closes is enough: from now on the whole text is known.
            self._ends = _ends(self._text)
        return self._ends.get(start)


def _ends(text: str) -> dict[int, int]:
    """Where each `{{` is closed. Runs match from the inside, by threes where both sides allow."""
    ends: dict[int, int] = {}
    opened: list[list[int]] = []
    for match in _BRACES.finditer(text):
        start, left = match.start(), len(match[0])
        if match[0][0] == "{":
            opened.append([start, left])
            continue
        while left >= 2 and opened:
            top = opened[-1]
            taken = 3 if left >= 3 and top[1] >= 3 else 2
            start, left, top[1] = start + taken, left - taken, top[1] - taken
            if taken == 2:
                ends[top[0] + top[1]] = start
            if top[1] < 2:
                opened.pop()
    return ends
