"""Words as 64-bit numbers, the same in every process, and n-grams of them.

Case, marks and spaces do not count. In scripts that do not divide words, each character is a unit.
All is done on arrays: one look-up a character, no Python object a word.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Any, NamedTuple

from tasks.clean.splitters import UNSPACED

# Odd 64-bit constants: the golden ratio's, and those of splitmix64 (Steele et al. 2014).
MIX = 0x9E3779B97F4A7C15
_SPLITMIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_WORD, _ALONE = 1, 2
# Ideographs beyond the basic plane.
_PLANE_2 = 0x20000
_BLOCK = 1 << 18


class Units(NamedTuple):
    """A text's words, and single characters where a script does not divide words.

    Attributes:
        text: in lower case and NFKC; what `starts` and `ends` index.
        codes: its characters, uint32.
        hashes: uint64 [units].
        starts: int64 [units], the first character.
        ends: int64 [units], behind the last.
        unspaced: whether most units are single characters of such scripts.
    """

    text: str
    codes: Any
    hashes: Any
    starts: Any
    ends: Any
    unspaced: bool


def units(text: str) -> Units:
    """Divide a text, and give each unit its number."""
    import numpy as np

    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", text)
    text = text.lower()
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    parts = []
    start = 0
    # A block at a time, for each character takes 40 bytes on the way.
    while start < len(codes):
        end = min(start + _BLOCK, len(codes))
        # No word is cut that is shorter than a block.
        cut = max(text.rfind(" ", start, end), text.rfind("\n", start, end)) + 1
        end = cut if cut > start and end < len(codes) else end
        parts.append(_divide(codes[start:end], start))
        start = end
    hashes, starts, ends, alone = (
        np.concatenate(arrays) for arrays in zip(*[_nothing(), *parts], strict=True)
    )
    return Units(text, codes, hashes, starts, ends, 2 * int(alone.sum()) > len(starts))


def _nothing() -> tuple[Any, Any, Any, Any]:
    import numpy as np

    none = np.zeros(0, np.int64)
    return np.zeros(0, np.uint64), none, none, np.zeros(0, bool)


def _divide(codes: Any, offset: int) -> tuple[Any, Any, Any, Any]:
    """Hashes, starts and ends of a block's units, and which are single characters."""
    import numpy as np

    classes = _classes()[np.minimum(codes, _PLANE_2)]
    word, alone = classes > 0, classes == _ALONE
    # A unit begins where a word does, and before and behind each character that stands alone.
    before = np.concatenate(([False], word[:-1] & ~alone[:-1]))
    starts = np.flatnonzero(word & (alone | ~before))
    if not len(starts):
        return _nothing()
    after = np.concatenate((word[1:] & ~alone[1:], [False]))
    ends = np.flatnonzero(word & (alone | ~after)) + 1
    longest = int((ends - starts).max())
    # Each character times a power for its place in the unit; what lies between units counts 0.
    runs = np.diff(np.append(starts, len(codes)))
    places = np.arange(starts[0], len(codes)) - np.repeat(starts, runs)
    weighed = (codes * word)[starts[0] :] * _powers(longest + 1)[np.minimum(places, longest)]
    hashes = _mixed(np.add.reduceat(weighed, starts - starts[0]))
    return hashes, starts + offset, ends + offset, alone[starts]


def grams(hashes: Any, size: int) -> Any:
    """A number for each run of `size` neighbours, uint64; empty where there are fewer."""
    import numpy as np

    count = max(0, len(hashes) - size + 1)
    result = hashes[:count].copy()
    for offset in range(1, size):
        result *= np.uint64(MIX)
        result += hashes[offset : offset + count]
    return result


def sums(hashes: Any, starts: Any) -> Any:
    """One number for each run of units from one start to the next, uint64 [starts]."""
    import numpy as np

    lengths = np.diff(np.append(starts, len(hashes)))
    places = np.arange(len(hashes)) - np.repeat(starts, lengths)
    powers = _powers(int(lengths.max(initial=0)) + 1)
    return _mixed(np.add.reduceat(hashes * powers[places], starts))


def _mixed(values: Any) -> Any:
    """The finaliser of splitmix64: every bit of a value bears on every bit of the result."""
    import numpy as np

    for shift, factor in zip((30, 27), _SPLITMIX, strict=True):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))


def _powers(count: int) -> Any:
    import numpy as np

    powers = np.full(count, MIX, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


@cache
def _classes() -> Any:
    """For each code point of the two first planes: part of a word, a word alone, or neither."""
    import re

    import numpy as np

    classes = np.zeros(_PLANE_2 + 1, np.uint8)
    classes[[code for code in range(_PLANE_2) if chr(code).isalnum()]] = _WORD
    everything = "".join(map(chr, range(0x10000)))
    classes[[ord(found[0]) for found in re.finditer(UNSPACED, everything)]] = _ALONE
    classes[_PLANE_2] = _ALONE
    return classes
