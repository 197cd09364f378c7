"""Texts made to tell two encoders apart; the same for the same tokenizer.

Every stretch of 128 code points that Python knows characters in, whitespace and control characters
in runs, contractions, digits, emoji joined by U+200D, combining marks without a base, composed and
decomposed forms, line ends of all kinds, added tokens as text, tokens of the vocabulary in any
order, and all of these side by side.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from tasks.tokens.encoders import routing

_PIECES = (
    " ", "  ", "\t", "\n", "\r\n", "\r", "\n\n\n", "\u00a0", "\u3000", "\u2028", "\u0085",
    "\u200b", "\ufeff", "\x0b", "\x0c", "\x1c", "\x00", "\x1b", "\x7f", "\x80", "\ufffd",
    "\uffff", "'s", "'S", "'ll", "'LL", "'re", "'ve", "'d", "'m", "'t", "\u2019s", "don't",
    "'\u017f", "''", "0", "1", "42", "1234", "3.14", "1,000,000", "\u0663", "\u00bd", "\u2167",
    "\u3007", "x2", "2x", "a", "word", "WORD", "Word", "caf\u00e9", "cafe\u0301", "\u0301",
    "\u0345", "\u20dd", "\u0130", "\u01c5", "\u212a", "\ufb01", "\u1e9e", "\u03a3\u03c2",
    "\ud55c\uae00", "\u1112\u1161\u11ab", "\u4e2d\u6587", "\u3002", "\u65e5\u672c\u8a9e\u306e",
    "\u30ab\u3099", "\u0e01\u0e33", "\u0915\u094d\u0937",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\u05e9\u05c1", "\ua9b3\u200c", "\u2126",
    "\uf900", "\U0002f800", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd",
    "\u2764\ufe0f", "\U0001f1e9\U0001f1ea", ".", ",", "...", "!?", "\u2014", "$", "#", "@", "_",
    "__", "//", "/", "\\", "<", ">", "|", "<|", "|>", "</s>", "<s>", "<unk>", "[UNK]", "[CLS]",
    "<pad>", "<0x0A>", "<|endoftext|>", "<|im_end|>", "\u2581", "\u0120", "\u010a", "##ing",
    "@@", "https://a.b/c?d=e&f", "def f(x):\n\treturn x\n",
)  # fmt: skip
_RUNS = (
    "a",
    "A",
    "ab",
    " ",
    "\n",
    "\t",
    "=",
    "-",
    "0",
    "\u00e9",
    "\u4e00",
    "\u0301",
    "!",
    " a",
    "\r\n",
)
_FORMS = ("{0}'s {0} 1{0}2 \n{0}", " {0}{1}. a{1}b", ".{0} {1}{1}{1}")
_PLANES = ((0, 0xD800), (0xE000, 0x40000), (0xE0000, 0xE1000))
_SEED = 20_261_130


def texts(tokens: Sequence[str], added: Sequence[str], size: int = 3000) -> Iterator[str]:
    """Yield some 6,000 texts, 250 kB in all.

    Args:
        tokens: what tokens of the vocabulary stand for; some of them will do.
        added: the added tokens.
        size: how many texts are put together from pieces.
    """
    chance = random.Random(_SEED)
    yield ""
    yield from _characters(chance)
    for run in _RUNS:
        yield from (f"x{run * length}y" for length in (2, 3, 7, 64, 700))
    for token in chance.sample(sorted(added), min(len(added), size)):
        yield f"{token}"
        yield f"a {token} b{token}{token}\n{token}'s"
    pools = [_PIECES, tokens or _PIECES, [*_PIECES, *chance.choices(list(added) or _PIECES, k=20)]]
    for number in range(size):
        pieces = chance.choices(pools[number % 3], k=chance.randint(2, 14))
        text = "".join(pieces)
        yield unicodedata.normalize(("NFC", "NFD")[number % 2], text) if number % 5 == 0 else text


def _characters(chance: random.Random) -> Iterator[str]:
    known = routing.known()
    for start, stop in _PLANES:
        for page in range(start, stop, 128):
            points = np.flatnonzero(known[page : page + 128]) + page
            for _ in range(2 if len(points) else 0):
                form, pair = chance.choice(_FORMS), chance.choices(points, k=2)
                yield form.format(*map(chr, pair))
