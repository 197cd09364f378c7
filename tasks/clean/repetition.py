"""How much of a document repeats itself: Gopher's shares of n-grams.

The shares are those of Rae et al. 2021 (arXiv:2112.11446, table A1). Counting all n-grams of all
sizes takes a hundred times as long as reading the text, and hardly a document comes near a limit.
So each share has a bound that sorting one array of hashes gives, and is counted only where the
bound is above the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tasks.clean.grams import MIX, grams

_SHORTEST_REPEAT = 5


class Repetition:
    """The n-grams of one document.

    Args:
        units: words, or a string of characters for a script that does not divide words.
        per_word: units a word: 1, or 2 characters.
        length: characters of the document, of which the shares are taken.
    """

    def __init__(self, units: Sequence[str], per_word: int, length: int) -> None:
        self._units, self._per_word, self._length = units, per_word, length
        # Words are joined by spaces, characters are not.
        self._joint = " " if per_word == 1 else ""

    def top_share(self, n: int, limit: float) -> float:
        """Share of characters in the most frequent n-gram, times its count; if at most `limit`,
        a bound that is too."""
        bound = self._most_frequent * self._longest(n) / self._length
        return bound if bound <= limit else self._exact_top(n * self._per_word) / self._length

    def repeated_share(self, n: int, limit: float) -> float:
        """Share of characters in n-grams that stood before; if at most `limit`, a
        bound that is too.

        Args:
            n: at least 5 words.
            limit: the largest share that passes.
        """
        bound = self._repeats * self._longest(_SHORTEST_REPEAT) / self._length
        if bound > limit:
            bound = self._repeated / self._length
        if bound <= limit:
            return bound
        bound = self._covered(n * self._per_word) / self._length
        return bound if bound <= limit else self._exact_repeated(n * self._per_word) / self._length

    @cached_property
    def _hashes(self) -> Any:
        """One 64-bit number a unit. Python's hashes differ from run to run and may collide: that
        only raises a bound, and what is above the limit is counted by the words themselves."""
        import numpy as np

        if isinstance(self._units, str):
            codes = np.frombuffer(self._units.encode("utf-32-le", "surrogatepass"), np.uint32)
            return codes.astype(np.uint64) * np.uint64(MIX)
        hashes = np.fromiter(map(hash, self._units), np.int64, count=len(self._units))
        return hashes.view(np.uint64)

    @cached_property
    def _lengths(self) -> Any:
        import numpy as np

        if isinstance(self._units, str):
            return np.ones(len(self._units), np.int64)
        return np.fromiter(map(len, self._units), np.int64, count=len(self._units))

    @cached_property
    def _most_frequent(self) -> int:
        """How often the most frequent pair of words occurs; no longer n-gram occurs more often."""
        import numpy as np

        found = grams(self._hashes, 2 * self._per_word)
        found.sort()
        starts = np.flatnonzero(found[1:] != found[:-1])
        edges = np.concatenate(([-1], starts, [len(found) - 1]))
        return int(np.diff(edges).max(initial=0))

    def _longest(self, n: int) -> int:
        """Most characters in any n neighbouring words, with the spaces between them."""
        import numpy as np

        size = n * self._per_word
        ends = np.concatenate(([0], np.cumsum(self._lengths + len(self._joint))))
        return int((ends[size:] - ends[:-size]).max(initial=0))

    @cached_property
    def _repeats(self) -> int:
        """How many 5-grams stood before. To sort is a fifth of the price of to sort with places."""
        import numpy as np

        found = np.sort(grams(self._hashes, _SHORTEST_REPEAT * self._per_word))
        return int((found[1:] == found[:-1]).sum())

    @cached_property
    def _repeated(self) -> int:
        """A bound for all sizes: what stood before is made of 5-grams that did."""
        return self._covered(_SHORTEST_REPEAT * self._per_word)

    def _covered(self, size: int) -> int:
        """Characters of all words in n-grams that stood before, whether or not these overlap."""
        import numpy as np

        found = grams(self._hashes, size)
        order = found.argsort(kind="stable")
        found = found[order]
        again = order[1:][found[1:] == found[:-1]]
        covered = np.zeros(len(self._units), bool)
        for offset in range(size):
            covered[again + offset] = True
        return int(self._lengths[covered].sum())

    def _exact_top(self, size: int) -> int:
        units, joint = self._units, self._joint
        counts = Counter(
            joint.join(units[start : start + size]) for start in range(len(units) - size + 1)
        )
        gram, count = counts.most_common(1)[0] if counts else ("", 0)
        return len(gram) * count

    def _exact_repeated(self, size: int) -> int:
        """After a repeated n-gram the search goes on behind it, so no character counts twice."""
        units, seen, repeated, start = self._units, set(), 0, 0
        while start <= len(units) - size:
            gram = "".join(units[start : start + size])
            if gram in seen:
                repeated += len(gram)
                start += size
            else:
                seen.add(gram)
                start += 1
        return repeated
