"""Words as arrays against Python's own `split`, whatever the text holds."""

from __future__ import annotations

import random
import re
import sys

import pytest

from tasks.clean.splitters import UNSPACED
from tasks.clean.words import most_unspaced, words_of

SPACES = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
PIECES = [
    *SPACES, *"aB1_.", "\0", "\x0e", "\x7f", "é", "×", "ж", "ß", "–", "\u200b", "\ud800", "長", "𝒜",
    "abcdefgh", "abcdefghi", "antidisestablishment",
]  # fmt: skip


def test_words_are_those_of_python() -> None:
    chance = random.Random(3)
    for _ in range(2000):
        weights = [1] * len(SPACES) + [12] * (len(PIECES) - len(SPACES))
        text = "".join(
            chance.choices([*PIECES, " ", "\n"], [*weights, 99, 20], k=chance.randrange(60))
        )
        words, found = text.split(), words_of(text.encode("utf-8", "surrogatepass"))
        assert list(found.lengths) == [len(word.encode("utf-8", "surrogatepass")) for word in words]
        assert found.blanks == text.count(" ") + text.count("\n")
        assert found.lettered <= sum(any(map(str.isalpha, word)) for word in words)
        assert len({*zip(words, found.hashes.tolist(), strict=True)}) == len({*words})


def test_different_words_have_different_numbers() -> None:
    chance = random.Random(4)
    words = {"".join(chance.choices("abé", k=chance.randrange(1, 12))) for _ in range(20_000)}
    # Of up to sixteen bytes, that is.
    short = [word for word in words if len(word.encode()) <= 16]
    assert len({*words_of(" ".join(short).encode()).hashes.tolist()}) == len(short)


@pytest.mark.parametrize("first", ["a", "Z", "ж", "š"])
def test_most_words_tell_by_their_first_byte_that_they_have_a_letter(first: str) -> None:
    assert words_of(f"{first}- 1a – ×".encode()).lettered == 1


def test_no_character_of_an_unspaced_script_is_missed() -> None:
    text = "".join(chr(code) for code in range(0xD800) if re.fullmatch(UNSPACED, chr(code)))
    assert most_unspaced(text.encode()) == len(text)
    assert most_unspaced("Prose – with “signs”, é and 𝒜.".encode()) == 0
