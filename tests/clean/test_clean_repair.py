"""The guarded repair against ftfy itself."""

from __future__ import annotations

import random

import ftfy
import pytest

from tasks.clean.repair import repair

TEXTS = [
    "plain ASCII, nothing to do",
    "âœ” No problems, voilÃ  le travail",
    "Broken text&hellip; it&#x2019;s ﬂubberiﬁc!",
    "a &amp; b\nc < d &amp; e\nf &amp; g",
    "ＬＯＵＤ　ＮＯＩＳＥＳ",
    "“curly” ‘quotes’",
    "e\u0301 and é, A\u030a",
    "line\r\nbreaks\rof\u2028all\x85kinds\x0b\x0c",
    "\ufeffcontrols\x00\x1b[1m\u206a\ufffc",
    "naïve café – Ångström Ærø 東京 Αθήνα Москва",
    "Ã Å Â â€ é\n\nsecond paragraph â€” here",
    "",
    "\n\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_is_ftfy(text: str) -> None:
    assert repair(text) == ftfy.fix_text(text)
    expected = ftfy.fix_text(text, uncurl_quotes=False, fix_character_width=False)
    assert repair(text, cjk=True) == expected


def test_is_ftfy_on_random_mixtures() -> None:
    chance = random.Random(7)
    pieces = [character for text in TEXTS for character in text] + ["Ã©", "â€™", "&lt;", "\n", " a"]
    for _ in range(1500):
        text = "".join(chance.choices(pieces, k=chance.randrange(1, 40)))
        assert repair(text) == ftfy.fix_text(text)


def test_chinese_punctuation_stays() -> None:
    assert repair("他说：“好”，（是）", cjk=True) == "他说：“好”，（是）"
    assert repair("他说：“好”，（是）") == '他说:"好",(是)'
