"""The words between a text's spaces as arrays: a number and a length of each.

A Python string a word takes ten times as long. Filters let nearly every document pass on the bounds
that these numbers give.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from tasks.clean.grams import MIX

_SPACE, _BREAK = 0x20, 0x0A
# By size in UTF-8, the first bytes of all other characters that divide words.
_OTHER_SPACES = {1: (*range(0x09, 0x0E), *range(0x1C, 0x20)), 2: (0xC2,), 3: (0xE1, 0xE2, 0xE3)}
_ANY_SPACE = re.compile(r"\s")
# What a look at eight bytes from any place needs behind the last.
_PADDING = bytes(8)


class Words(NamedTuple):
    """Words as `str.split` tells them apart.

    Attributes:
        hashes: uint64 [words]; words of more than 16 bytes may share one.
        lengths: int64 [words], in bytes: no fewer than the characters.
        blanks: how many spaces and line breaks the text has.
        lettered: how many words begin with a letter, as far as their first byte tells.
    """

    hashes: Any
    lengths: Any
    blanks: int
    lettered: int


def most_unspaced(data: bytes) -> int:
    """No fewer than the characters of scripts that do not divide words, in a text in UTF-8."""
    import numpy as np

    codes = np.frombuffer(data, np.uint8)
    # All that begin with these bytes.
    return int(np.count_nonzero((codes >= 0xE0) & (codes != 0xE2) & (codes <= 0xE9)))


def words_of(data: bytes) -> Words:
    """Tell the words of a text in UTF-8 apart."""
    import numpy as np

    padded = data + _PADDING
    codes = np.frombuffer(padded, np.uint8)
    # As signed numbers, all bytes that may belong to a space are at most one's.
    places = np.flatnonzero(codes[: len(data)].view(np.int8) <= _SPACE)
    found = codes[places]
    plain = (found == _SPACE) | (found == _BREAK)
    blanks = places[plain]
    if _any_spaces(codes, places[~plain]):
        words = " ".join(data.decode("utf-8", "surrogatepass").split())
        return words_of(words.encode("utf-8", "surrogatepass"))._replace(blanks=len(blanks))
    starts = np.concatenate(([0], blanks + 1))
    ends = np.append(blanks, len(data))
    if not (ends > starts).all():
        starts, ends = starts[ends > starts], ends[ends > starts]
    return Words(
        _hashes(padded, starts, ends),
        ends - starts,
        len(blanks),
        int(_letters()[codes[starts]].sum()),
    )


def _hashes(padded: bytes, starts: Any, ends: Any) -> Any:
    """From the first eight bytes of a word, and of a longer one its length and the last eight."""
    import numpy as np

    eights = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    lengths = ends - starts
    hashes = (eights[starts] & _masks()[np.minimum(lengths, 8)]) * np.uint64(MIX)
    longer = np.flatnonzero(lengths > 8)
    last = eights[ends[longer] - 8]
    hashes[longer] = (hashes[longer] + last) * np.uint64(MIX) + lengths[longer].view(np.uint64)
    return hashes


def _any_spaces(codes: Any, places: Any) -> bool:
    """Whether any of the bytes there begins a character that divides words."""
    import numpy as np

    sizes = _sizes()[codes[places]]
    for size in (1, 2, 3):
        chosen = places[sizes == size]
        if chosen.size:
            characters = codes[chosen[:, None] + np.arange(size)].tobytes().decode()
            if _ANY_SPACE.search(characters):
                return True
    return False


@cache
def _sizes() -> Any:
    """By first byte, how many bytes a character has that may be another space; 0 for all else."""
    import numpy as np

    table = np.zeros(256, np.uint8)
    for size, firsts in _OTHER_SPACES.items():
        table[[*firsts]] = size
    return table


@cache
def _masks() -> Any:
    """What is left of eight bytes, lowest first, by how many of them count."""
    import numpy as np

    return np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)


@cache
def _letters() -> Any:
    """By first byte, whether all characters that begin with it are letters."""
    import numpy as np

    table = np.zeros(256, bool)
    table[:0x80] = [chr(code).isalpha() for code in range(0x80)]
    for first in range(0xC2, 0xE0):
        block = range((first & 0x1F) << 6, ((first & 0x1F) + 1) << 6)
        table[first] = all(chr(code).isalpha() for code in block)
    return table
