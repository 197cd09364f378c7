"""Documents that hold a piece of an evaluation set, by runs of words that both have.

GPT-3 took 13 words (Brown et al. 2020, arXiv:2005.14165, appendix C); in scripts that do not divide
words, a word is taken as two characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tasks.clean.grams import grams, units

_PER_WORD = 2


class Hit(NamedTuple):
    """What a document shares with an evaluation set.

    Attributes:
        name: the set's.
        item: the first item hit, counted from 0.
        runs: how many of the document's runs of words are in the set.
        sample: the first of them, in lower case.
    """

    name: str
    item: int
    runs: int
    sample: str


class _Table(NamedTuple):
    """The runs of all sets, in ascending order: uint64 [runs], and whose they are."""

    runs: Any
    names: Any
    items: Any


class EvaluationSets:
    """The runs of words of evaluation sets.

    Args:
        sets: the texts of each set, by its name.
        words: length of a run.

    Attributes:
        too_short: by set, how many items are shorter than a run, so nothing can be told of them.
    """

    def __init__(self, sets: Mapping[str, Iterable[str]], words: int = 13) -> None:
        self._words = words
        self._names = list(sets)
        self.too_short = dict.fromkeys(self._names, 0)
        # Items in scripts that divide words, and in those that do not, have runs of other sizes.
        rows: dict[bool, list[tuple[Any, int, int]]] = {False: [], True: []}
        for number, (name, texts) in enumerate(sets.items()):
            for item, text in enumerate(texts):
                found = units(text)
                runs = grams(found.hashes, self._size(found.unspaced))
                self.too_short[name] += not len(runs)
                rows[found.unspaced].append((runs, number, item))
        self._tables = {unspaced: _table(rows[unspaced]) for unspaced in rows}

    def hits(self, text: str) -> list[Hit]:
        """What a document shares with each set, in the order of the sets."""
        import numpy as np

        found = units(text)
        hits: dict[int, Hit] = {}
        for unspaced, table in self._tables.items():
            size = self._size(unspaced)
            runs = grams(found.hashes, size)
            if not len(table.runs) or not len(runs):
                continue
            places = np.searchsorted(table.runs, runs)
            places[places == len(table.runs)] = 0
            where = np.flatnonzero(table.runs[places] == runs)
            for number in np.unique(table.names[places[where]]):
                mine = where[table.names[places[where]] == number]
                first = int(mine[0])
                sample = found.text[found.starts[first] : found.ends[first + size - 1]]
                item = int(table.items[places[first]])
                before = hits.get(int(number), Hit("", item, 0, sample))
                hits[int(number)] = Hit(
                    self._names[number], before.item, before.runs + len(mine), before.sample
                )
        return [hits[number] for number in sorted(hits)]

    def _size(self, unspaced: bool) -> int:
        return self._words * (_PER_WORD if unspaced else 1)


def _table(rows: list[tuple[Any, int, int]]) -> _Table:
    import numpy as np

    if not rows:
        return _Table(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    runs = np.concatenate([runs for runs, _, _ in rows])
    counts = [len(runs) for runs, _, _ in rows]
    names = np.repeat([number for _, number, _ in rows], counts)
    items = np.repeat([item for _, _, item in rows], counts)
    # A run in several sets counts for the first.
    runs, first = np.unique(runs, return_index=True)
    return _Table(runs, names[first], items[first])
