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
from tasks.clean.words import Words

_SHORTEST_REPEAT = 5


class Repetition:
    """The n-grams of one document.

    Args:
        text: what its units are counted in: where words is None, characters without spaces.
        words: its words, which are then the units. Two characters count as much as a word.
        length: characters of the document, of which the shares are taken.
    """

    def __init__(self, text: str, words: Words | None, length: int) -> None:
        self._text, self._words, self._length = text, words, length
        self._per_word = 2 if words is None else 1

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
        bound = self._repeats * self._longest_repeat / self._length
        if bound > limit:
            bound = self._repeated / self._length
        if bound <= limit:
            return bound
        bound = self._covered(n * self._per_word) / self._length
        return bound if bound <= limit else self._exact_repeated(n * self._per_word) / self._length

    @cached_property
    def _hashes(self) -> Any:
        """One 64-bit number a unit. They may collide: that only raises a bound, and what is above
        the limit is counted by the words themselves."""
        import numpy as np

        if self._words is not None:
            return self._words.hashes
        codes = np.frombuffer(self._text.encode("utf-32-le", "surrogatepass"), np.uint32)
        return codes.astype(np.uint64) * np.uint64(MIX)

    @cached_property
    def _ends(self) -> Any:
        """Where each unit ends in the text; of words no less than the characters before."""
        import numpy as np

        if self._words is None:
            return np.arange(len(self._text) + 1)
        return np.concatenate(([0], np.cumsum(self._words.lengths + 1)))

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
        size = n * self._per_word
        return int((self._ends[size:] - self._ends[:-size]).max(initial=0))

    @cached_property
    def _longest_repeat(self) -> int:
        return self._longest(_SHORTEST_REPEAT)

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
        covered = np.zeros(len(self._hashes), bool)
        for offset in range(size):
            covered[again + offset] = True
        return int(covered.sum() if self._words is None else self._words.lengths[covered].sum())

    @property
    def _units(self) -> Sequence[str]:
        return self._text.split() if self._words else self._text

    def _exact_top(self, size: int) -> int:
        # Words are joined by spaces, characters are not.
        units, joint = self._units, " " if self._words else ""
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
