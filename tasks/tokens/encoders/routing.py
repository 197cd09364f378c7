"""A fast encoder for the texts it is sure of, and the tokenizer's own for the others."""

from __future__ import annotations

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from tasks.tokens.encoders import Ids, Lengths, Name, Spec, Unsuited, joined, load


class Routed:
    """See `Encoder`.

    A text goes to the tokenizer's own encoder when a character in it is newer than Python's Unicode
    table, when it has a combining mark that tokenizers puts elsewhere (its normal forms are those
    of an old Unicode), or when `apart` matches. Fast encoders bring Unicode tables of their own.
    gigatoken 0.10 and tokenizers 0.23 were compared on all 1,112,064 code points in five contexts:
    they differ on 4,660, letters of Unicode 16 and 17, all of them newer than Python 3.13's table
    (15.1); and with NFC on 98 combining marks.

    Args:
        name: the fast encoder's.
        fast: the ids of one text; raises Unsuited where it cannot do that text.
        spec: whose `own` encoder takes the rest; loaded when the first such text comes.
        normalized: whether the tokenizer brings texts into a normal form.
        apart: what makes a text one for the tokenizer's own encoder, wherever it is found.
    """

    def __init__(
        self,
        name: Name,
        fast: Callable[[str], NDArray[np.uint32]],
        spec: Spec,
        normalized: bool,
        apart: re.Pattern[str] | None = None,
    ) -> None:
        self.name = name
        self._fast, self._normalized, self._apart = fast, normalized, apart
        self._own = dataclasses.replace(spec, encoder=spec.own)

    def encode(self, texts: list[str]) -> tuple[Ids, Lengths]:
        """See `Encoder`."""
        return joined([self._of(text) for text in texts])

    def _of(self, text: str) -> Ids:
        if not is_new(text, self._normalized) and not (self._apart and self._apart.search(text)):
            try:
                return self._fast(text)
            except Unsuited:
                pass
        return load(self._own).encode([text])[0]


def any_of(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that matches each of these; None where there are none."""
    alternatives = "|".join(map(re.escape, tokens))
    return re.compile(alternatives) if alternatives else None


def is_new(text: str, normalized: bool) -> bool:
    """True where a text has a character that is too new for a fast encoder to be sure of it.

    Args:
        text: any.
        normalized: whether the tokenizer brings texts into a normal form.
    """
    if text.isascii():
        return False
    table, least = _unsure(normalized)
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return bool(table[points[points >= least]].any())


@functools.cache
def known() -> NDArray[np.bool_]:
    """For each code point, whether Python's Unicode table has a character there."""
    table = np.zeros(0x110000, np.bool_)
    table[0xF0000:] = True  # for private use
    for start, stop in ((0, 0x40000), (0xE0000, 0xE1000)):  # nothing is assigned between these
        categories = map(unicodedata.category, map(chr, range(start, stop)))
        table[start:stop] = list(map("Cn".__ne__, categories))
    return table


@functools.cache
def _unsure(normalized: bool) -> tuple[NDArray[np.bool_], int]:
    """Whether each code point makes a text new, and the least that does."""
    table = ~known()
    if normalized:
        table[_misplaced()] = True
    return table, int(table.argmax())


def _misplaced() -> list[int]:
    """The combining marks that tokenizers' NFC orders or composes in another way than Python's."""
    from tokenizers import normalizers

    theirs = normalizers.NFC()
    found = set()
    for character in map(chr, range(0x80, 0x20000)):
        if unicodedata.combining(character):
            around = ("{}", "e{}\u0323", "e{}\u0301", "e{}\u0591", "e\u0301{}", "e\u05b0{}")
            forms, mark = [form.format(character) for form in around], character
        elif unicodedata.decomposition(character)[:1] not in ("", "<"):
            forms = [unicodedata.normalize("NFD", character)]
            mark = forms[0][-1]
        else:
            continue
        if any(theirs.normalize_str(form) != unicodedata.normalize("NFC", form) for form in forms):
            found.add(ord(mark))
    return sorted(found)
