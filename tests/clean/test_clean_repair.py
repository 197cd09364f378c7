"""The guarded repair against ftfy itself."""

from __future__ import annotations

import random
from itertools import product

import ftfy
import pytest
from ftfy.badness import MOJIBAKE_CATEGORIES, is_bad
from ftfy.chardata import CHARMAP_ENCODINGS

from tasks.clean.repair import Form, _doubt, _steps, repair

TEXTS = [
    "plain ASCII, nothing to do",
    "âœ” No problems, voilÃ  le travail",
    "Broken text&hellip; it&#x2019;s ﬂubberiﬁc!",
    "a &amp; b\nc < d &amp; e\nf &amp; g",
    "a ＆amp; b\nc ＜ d &amp; e &nosuch; &#xD800; &EACUTE;",
    "ＬＯＵＤ　ＮＯＩＳＥＳ Ｕﾀｰﾝ ￠￣Ａ\u0301",
    "“curly” ‘quotes’ ŉ ʼn",
    "e\u0301 and é, A\u030a, \u212b, &amp\u037e 10³ ½ ™",
    "line\r\nbreaks\rof\u2028all\x85kinds\x0b\x0c",
    "\ufeffcontrols\x00\x1b[1m\u206a\ufffc \ud83d\udca9 \udca9",
    "naïve café – Ångström Ærø 東京 Αθήνα Москва Ђорђе œuvre",
    "Ã Å Â â€ é\n\nsecond paragraph â€” here",
    "",
    "\n\n",
]
# Each of ftfy's triggers, at the least length at which it is one.
PIECES = [
    *"aeE .,;?'\"\n\n<&éÉ“”‘’–…Â Ãœ½²°€Дж中、（Ａ＆＜；ﾀ",
    *"\u0301\u0302\u212b\u037e\ufffd\x85\xa0\r\x1b\ufb01Ǆ",
    *("&amp;", "&lt;", "&#x2019;", "&Eacute;", "\x1b[1m", "\ud83d", "\udca9", "\r\n", "\u2028"),
    # Mojibake: what these words become when their UTF-8 is read as something else.
    *(
        word.encode().decode(encoding, "replace")
        for word in ("é", "–", "’", "ж", "中", "Š", "à la", "💩")
        for encoding in CHARMAP_ENCODINGS
    ),
]


def _expected(text: str, cjk: bool, form: Form | None) -> str:
    keep = {"uncurl_quotes": False, "fix_character_width": False} if cjk else {}
    return ftfy.fix_text(text, normalization=form, **keep)


@pytest.mark.parametrize("form", ["NFC", "NFKC", None])
@pytest.mark.parametrize("cjk", [False, True])
def test_is_ftfy(cjk: bool, form: Form | None) -> None:
    for text in [*TEXTS, *PIECES]:
        assert repair(text, cjk, form) == _expected(text, cjk, form)


@pytest.mark.parametrize("form", ["NFC", "NFKC", None])
@pytest.mark.parametrize("cjk", [False, True])
def test_is_ftfy_on_random_mixtures(cjk: bool, form: Form | None) -> None:
    chance = random.Random(7)
    for _ in range(400):
        text = "".join(chance.choices(PIECES, k=chance.randrange(1, 30)))
        assert repair(text, cjk, form) == _expected(text, cjk, form)


def test_no_mojibake_escapes_the_guard() -> None:
    doubt = _doubt()
    table = "".join(MOJIBAKE_CATEGORIES.values())
    alphabet = [chr(code) for code in range(0x20, 0x3000) if is_bad(chr(code))]
    # From each category the first, the last and one between; and those that ftfy names one by one.
    for characters in MOJIBAKE_CATEGORIES.values():
        alphabet += [characters[0], characters[len(characters) // 2], characters[-1]]
    alphabet += [character for character in table if character in "ÂÃÎÐØÙвЂβΒаåàŒœ√≈‚Äâó×°²³Г"]
    assert sum(map(is_bad, table)) == len([c for c in table if is_bad(c) and doubt.search(c)]) > 0
    bad = 0
    for pair in product(set(alphabet), repeat=2):
        for text in (
            "".join(pair),
            " {}{}".format(*pair),
            "a{}{} a".format(*pair),
            "{}{}С".format(*pair),
        ):
            if is_bad(text):
                bad += 1
                assert doubt.search(text), text
    assert bad > 1000


def test_one_long_line_is_cut_where_ftfy_cuts_it() -> None:
    text = "aâ€™" * 350_000
    assert repair(text) == ftfy.fix_text(text)


def test_chinese_punctuation_stays() -> None:
    assert repair("他说：“好”，（是）", cjk=True) == "他说：“好”，（是）"
    assert repair("他说：“好”，（是）") == '他说:"好",(是)'


@pytest.mark.parametrize("cjk", [False, True])
def test_what_replaces_a_character_needs_no_replacing(cjk: bool) -> None:
    table = _steps(cjk, "NFC").table
    assert not set("".join(table.values())) & table.keys()
