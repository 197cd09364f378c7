"""Duplicates: equal documents, equal paragraphs, and documents that are nearly equal.

Workers turn documents into numbers; who stays is decided from arrays of these in the order of the
documents, so it does not depend on who was first. The arrays may be memory-mapped: what is held at
a time is bounded by `block`, not by the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from tasks.clean.grams import grams, sums, units

# As datatrove's: 14 bands of 8 find 92 % of pairs alike in 0.8 of their n-grams, 6 % at 0.5.
BANDS, ROWS = 14, 8
_SHINGLE = 5
# Marks a paragraph that is too short to be compared, and a document without any n-gram.
NONE = 0
FIRST, AGAIN = 1, 2
_BLOCK = 1 << 21


class Marks(NamedTuple):
    """A document's numbers.

    Attributes:
        document: of all its words; `NONE` where it has none.
        paragraphs: uint64 [lines]; `NONE` for one that is too short to count as repeated.
        signature: uint32 [BANDS * ROWS], MinHash of its 5-grams of words, or 10-grams of
            characters (Broder 1997); zeros where it has none.
    """

    document: int
    paragraphs: Any
    signature: Any


def marks(text: str, min_words: int) -> Marks:
    """What a document is compared by.

    Args:
        text: a cleaned document, a paragraph a line.
        min_words: shorter paragraphs, such as headings, are no duplicates of each other.
    """
    import numpy as np

    found = units(text)
    lines = found.text.count("\n") + 1
    paragraphs = np.zeros(lines, np.uint64)
    if not len(found.hashes):
        return Marks(NONE, paragraphs, np.zeros(BANDS * ROWS, np.uint32))
    breaks = np.flatnonzero(found.codes == ord("\n"))
    line_of = np.searchsorted(breaks, found.starts)
    used, first, count = np.unique(line_of, return_index=True, return_counts=True)
    long = count >= min_words * (2 if found.unspaced else 1)
    paragraphs[used[long]] = sums(found.hashes, first)[long]
    document = int(sums(found.hashes, np.zeros(1, np.int64))[0])
    shingles = grams(found.hashes, _SHINGLE * (2 if found.unspaced else 1))
    return Marks(document, paragraphs, _signature(shingles))


def first_of(hashes: Any, block: int = _BLOCK) -> Any:
    """For each number the index of the first equal one, which is its own where it is new.

    Args:
        hashes: uint64 [n]; `NONE` equals nothing.
        block: about how many to hold at a time.

    Returns:
        int64 [n].
    """
    import numpy as np

    result = np.arange(len(hashes))
    for members, starts, counts in _equals(hashes, block):
        result[members] = np.repeat(members[starts], counts)
    return result


def repeated(hashes: Any, block: int = _BLOCK) -> Any:
    """Which numbers stood before: as `first_of`, at an eighth of its size.

    Returns:
        int8 [n]: 0 for a number that is alone, `FIRST` of equal ones, `AGAIN` for the others.
    """
    import numpy as np

    result = np.zeros(len(hashes), np.int8)
    for members, starts, counts in _equals(hashes, block):
        result[members] = AGAIN
        result[members[starts]] = np.where(counts > 1, FIRST, 0)
    return result


def _equals(hashes: Any, block: int) -> Iterator[tuple[Any, Any, Any]]:
    """Indices with equal numbers side by side and in order, where each run starts, its length."""
    import numpy as np

    parts = max(1, -(-len(hashes) // block))
    for part in range(parts):
        # Equal numbers fall into one part.
        found = [
            start + _members(hashes[start : start + block], part, parts)
            for start in range(0, len(hashes), block)
        ]
        members = np.concatenate(found) if found else np.zeros(0, np.int64)
        values = hashes[members]
        order = np.argsort(values, kind="stable")
        values = values[order]
        starts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1]))[: len(values)])
        yield members[order], starts, np.diff(np.append(starts, len(values)))


def _members(hashes: Any, part: int, parts: int) -> Any:
    import numpy as np

    return np.flatnonzero((hashes != NONE) & (hashes % np.uint64(parts) == part))


def near_duplicates(
    signatures: Any, threshold: float, among: Any = None, block: int = _BLOCK
) -> Any:
    """For each document the first that it is nearly equal to, which is itself where it stays.

    Two are compared where all numbers of a band agree; the second goes where the share of equal
    numbers in the whole signatures, an estimate of the Jaccard similarity, reaches the threshold.

    Args:
        signatures: uint32 [documents, BANDS * ROWS].
        threshold: from 0 to 1.
        among: bool [documents], those to look at; all where left out.
        block: about how many numbers to hold at a time.

    Returns:
        int64 [documents].
    """
    import numpy as np

    keeper = np.arange(len(signatures))
    for later, earlier in _pairs(signatures, among, block):
        # Where the earlier went too, what it repeats stands before both.
        stays = keeper[earlier]
        if keeper[later] == later and np.mean(signatures[later] == signatures[stays]) >= threshold:
            keeper[later] = stays
    return keeper


def _pairs(signatures: Any, among: Any, block: int) -> Any:
    """Documents that agree in a band, each with the band's first and with the one before it.

    Returns:
        int64 [pairs, 2]: the later, in order, and the earlier.
    """
    import numpy as np

    documents = np.arange(len(signatures))
    keys = np.zeros(len(signatures), np.uint64)
    pairs = [np.zeros((0, 2), np.int64)]
    for band in range(BANDS):
        for start in range(0, len(signatures), block):
            rows = np.asarray(signatures[start : start + block, band * ROWS : (band + 1) * ROWS])
            numbers = sums(rows.astype(np.uint64).ravel(), np.arange(len(rows)) * ROWS)
            keys[start : start + block] = np.where(rows.any(axis=1), numbers, np.uint64(NONE))
        if among is not None:
            keys[~among] = NONE
        first = first_of(keys, block)
        order = np.argsort(first, kind="stable")
        same = first[order[1:]] == first[order[:-1]]
        pairs += [
            np.stack((order[1:][same], order[:-1][same]), 1),
            np.stack((documents, first), 1)[first != documents],
        ]
    return np.unique(np.concatenate(pairs), axis=0)


def _signature(shingles: Any) -> Any:
    """For each of the hash functions the least value over all n-grams."""
    import numpy as np

    least = np.full(BANDS * ROWS, np.iinfo(np.uint32).max, np.uint32)
    if not len(shingles):
        return np.zeros_like(least)
    factors, terms = _functions()
    # As many at a time as fit a processor's cache.
    for start in range(0, len(shingles), 2048):
        values = shingles[start : start + 2048, None] * factors + terms
        np.minimum(least, (values >> np.uint64(32)).min(axis=0).astype(np.uint32), out=least)
    return least


@cache
def _functions() -> tuple[Any, Any]:
    import numpy as np

    numbers = np.random.Generator(np.random.PCG64(20261129)).integers(
        0, 1 << 63, (2, BANDS * ROWS), np.uint64
    )
    return numbers[0] | np.uint64(1), numbers[1]
