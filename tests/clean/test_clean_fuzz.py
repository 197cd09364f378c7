"""Hostile markup: whatever a page holds, cleaning it neither raises nor passes the page's limit.

Time is the processor's, so that a busy machine fails nothing. Seeds are fixed.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
import re
import time
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial

import pytest

import tasks.clean
from tasks.clean.counts import Counts
from tasks.clean.marks import ALL
from tasks.clean.mediawiki import Page, Site
from tasks.clean.pages import Cleaner, Options, Origin
from tasks.clean.wiki import PageTimeout, Wiki
from tasks.clean.wikitext import clean

OPENERS = {
    "{{": "}}", "{{{": "}}}", "{{a|": "}}", "{{unknown|": "}}", "{{#if:x|": "}}", "[[": "]]",
    "[[a|": "]]", "[[File:a.jpg|thumb|": "]]", "[http://a ": "]", "\n{|\n|": "\n|}", "-{": "}-",
    "-{zh-hans:": "}-", "<ref>": "</ref>", "<div>": "</div>", "<table><tr><td>": "</table>",
    "<nowiki>": "</nowiki>", "<!--": "-->", "<math>": "</math>", "<gallery>": "</gallery>",
    "<ruby><rt>": "</rt></ruby>", "''": "''", "'''": "'''", "\n==": "==", "(": ")", "（": "）",
    "{{lang|fr|": "}}", "{{#switch:x|a=": "}}", "{{convert|": "}}", "<noinclude>": "</noinclude>",
}  # fmt: skip
SINGLE = [
    *"{ } [ ] | || |- ! !! < > </ ' = __ & &amp; &# &#1; &lt; ~ <br> <rp> <ref/> {{!}}".split(),
    *"{{=}} {{x}} [[a]] ([[a]], (, () 。 中 1 -1 9e99 km to - ± x= 2= ; : * __TOC__ a".split(),
    *("\n", "\n\n", " ", "\t", "\n*", "\n#", "\n:", "\n;", "a b. ", "\x01", "\x03", "é\n"),
    *("\r", "#REDIRECT"),
]  # fmt: skip
LIBRARY = {
    "A": "{{{1}}} {{{x|{{{y|d}}}}}}", "Loop": "x{{loop}}", "One": "{{two}}{{two}}",
    "Two": "{{one}}{{one}}", "Grow": "{{{1}}}{{{1}}}", "Tag": "{{#tag:nowiki|{{{1}}}}}",
    "Twice": "{{grow|{{grow|{{grow|{{grow|{{{1}}}}}}}}}}}", "Open": "{{a|[[", "Close": "]]}}",
    "Red": "#REDIRECT [[Template:Red2]]", "Red2": "#REDIRECT [[Template:Red]]",
    "Rep": "{{#replace:{{{1}}}|a|{{{1}}}{{{1}}}}}", "Table": "{|\n| {{{1}}}\n|}",
    "Calc": "{{#expr:{{{1}}}}}", "File": "[[File:a.jpg|thumb|{{{1}}}]]", "Many": "{{a|" * 20_000,
    "Ifs": "{{#if:x|" * 9_999 + "}}" * 9_999, "Big": "x" * 1_000_000,
    "Sw": "{{#switch:{{{1}}}|" + "|".join(f"{n}={n}" for n in range(9_999)) + "}}",
} | {
    f"F{n}": f"{{{{f{n + 1}|{{{{{{1}}}}}}{{{{{{1}}}}}}}}}}{{{{f{n + 1}|{{{{{{1}}}}}}}}}}"
    for n in range(40)
}  # fmt: skip
CALLS = (
    "a loop one grow twice red rep tag table calc file open close convert val lang nihongo age "
    "circa coord abbr sfn chem sortname quote ruby zh ordinal #if: #ifeq: #switch: #expr: #time: "
    "#ifexpr: #titleparts: #sub: #explode: #iferror: #tag: #pos: #replace: padleft: plural: lc: "
    "formatnum: urlencode: #invoke:x PAGENAME CURRENTYEAR"
).split()
LIMIT = 0.3
# One pass over a page cannot be broken off; it takes about half a microsecond a character.
PASS = 3e-6
# What is loaded for the first page of a kind, on a busy machine.
START = 2.0


def _piece(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.3:
        arguments = "".join(f"|{chance.choice(SINGLE)}" for _ in range(chance.randrange(4)))
        return "{{" + chance.choice(CALLS) + arguments + chance.choice(("}}", "}}", "}", "", "}}}"))
    if kind < 0.6:
        return chance.choice([*OPENERS, *OPENERS.values()])
    return chance.choice(SINGLE)


def test_no_page_raises_or_shows_a_stand_in() -> None:
    wiki = Wiki(seconds=5, library=LIBRARY, today=date(2024, 1, 1))
    for seed in range(1_500):
        chance = random.Random(seed)
        page = "".join(_piece(chance) for _ in range(chance.choice((5, 20, 60, 300))))
        shown = clean(page, wiki, "Title", trace=seed % 3 == 0)
        assert not set(ALL) & set(shown.text), (seed, page)


def _article(text: str, seconds: float = LIMIT) -> tuple[float, Counts]:
    """The processor time that an article takes through markup and rules, and its counts."""
    machine, counts = Cleaner(Origin(Site()), Options(page_seconds=seconds)), Counts()
    page = Page("1", "Title", 0, False, "wikitext", "2", text)
    start = time.thread_time()
    machine.article(page, counts)
    return time.thread_time() - start, counts


@pytest.mark.parametrize("piece", ["{", "}", "[", "|", "'", "<", "=", "-{"])
def test_a_million_of_a_mark(piece: str) -> None:
    seconds, counts = _article(piece * (1_000_000 // len(piece)))
    assert seconds < LIMIT + 1_000_000 * PASS
    assert counts.empty + counts.timed_out.count + counts.filtered.total() == 1


@pytest.mark.parametrize("piece", [*OPENERS, *SINGLE, *OPENERS.values()])
def test_time_grows_with_the_number_of_marks_alone(piece: str) -> None:
    closed = OPENERS.get(piece, "")
    for page in (piece * 2_000 + closed * 2_000, (piece + closed) * 2_000):
        seconds, _ = _article(page)
        assert seconds < LIMIT + START + len(page) * PASS, page[:60]


def test_crossed_pairs() -> None:
    chance = random.Random(1)
    for _ in range(150):
        (first, last), (other, end) = chance.choices(list(OPENERS.items()), k=2)
        page = (first + other) * 500 + (last + end) * 500
        seconds, _ = _article(page)
        assert seconds < LIMIT + START, page[:60]


HOSTILE_CALLS = {
    "doubling forty deep": "{{f0|ab}}\n" * 500,
    "in a ring": "{{one}}" * 5_000,
    "by itself": "{{loop}}" * 10_000,
    "redirects in a ring": "{{red}}" * 10_000,
    "doubling on the page": "{{grow|" * 50 + "ab" + "}}" * 50,
    "doubling again and again": ("{{grow|" * 22 + "ab" + "}}" * 22 + "\n") * 50,
    "sixteen times, ten deep": "{{twice|" * 10 + "ab" + "}}" * 10,
    "replacing": "{{rep|" * 6 + "a" * 200 + "}}" * 6,
    "large": "{{big}} " * 100,
    "many cases": "{{sw|x}} " * 500 + "{{#switch:x|" + "a=b|" * 50_000 + "}}",
    "many conditions": "{{ifs}}" * 200 + "{{#if:x|" * 20_000 + "}}" * 20_000,
    "unclosed inside": "{{many}}" * 20,
    "many arguments": "{{a|"
    + "x|" * 100_000
    + "}}{{a|"
    + "".join(f"k{n}=|" for n in range(50_000)),
    "a long sum": ("{{#expr:" + "1+" * 900 + "1}}") * 300,
    "a long date": ("{{#time:" + "Y" * 5_000 + "|2020}}") * 300,
    "names made of names": "{{{{a}}|" * 20_000,
    "open in one, closed in another": "{{open}}" * 9_999 + "{{close}}" * 9_999,
}


@pytest.mark.parametrize("page", HOSTILE_CALLS.values(), ids=HOSTILE_CALLS.keys())
def test_templates_that_multiply_end_with_the_page_s_time(page: str) -> None:
    wiki = Wiki(seconds=LIMIT, library=LIBRARY, today=date(2024, 1, 1))
    start = time.thread_time()
    try:
        clean(page, wiki)
    except PageTimeout:
        pass
    # What an expansion may be at most, five million characters, is the longest pass.
    assert time.thread_time() - start < LIMIT + 1.5


def test_a_page_beyond_its_time_is_named() -> None:
    seconds, counts = _article("{{#if:x|" * 9_999 + "{{unknown|" * 9_999, seconds=1e-9)
    assert counts.timed_out.pages == [{"id": "1", "title": "Title"}]
    assert seconds < 1


# Never given more than a hundred characters.
SHORT = {"times._OFFSET"}
PUMPS = [*" \n\ta1A=|'-_.{}[]<>&#;:()。é\x01/", "\x01 ", "a ", "a=", "a=b ", "1 ", "1.", "a\n"]


def _patterns() -> Iterator[tuple[str, bool, re.Pattern[str]]]:
    """Each pattern with its name, and whether it is only ever matched at one place."""
    for module in pkgutil.iter_modules(tasks.clean.__path__):
        loaded = importlib.import_module(f"tasks.clean.{module.name}")
        source = inspect.getsource(loaded)
        for name, value in vars(loaded).items():
            many = list(value.values()) if isinstance(value, dict) else value
            uses = set(re.findall(rf"\b{name}\.(\w+)\(", source))
            for one in many if isinstance(many, list | tuple) else (value,):
                if isinstance(one, re.Pattern) and isinstance(one.pattern, str):
                    yield f"{module.name}.{name}", {"match", "fullmatch"} >= uses > set(), one


def test_no_pattern_takes_quadratic_time() -> None:
    """What a pattern holds, then the same few characters again and again."""
    seen: set[str] = set()
    for name, anchored, pattern in _patterns():
        if pattern.pattern in seen or name in SHORT:
            continue
        seen.add(pattern.pattern)
        starts = re.findall(r"\w{2,}|[^\w\s]{1,3}", pattern.pattern)[:5]
        for start in ("", *starts):
            for pump in PUMPS:
                use = pattern.fullmatch if anchored else partial(pattern.sub, "")
                assert _linear(use, start, pump), (name, start, pump)


def _linear(use: Callable[[str], object], start: str, pump: str) -> bool:
    def seconds(count: int) -> float:
        began = time.thread_time()
        use(start + pump * count)
        use((start + pump) * (count // 4))
        return time.thread_time() - began

    # Four times the text would take sixteen times as long; a pause of the machine's only adds.
    return seconds(2_000) < 0.005 or any(seconds(8_000) < 9 * seconds(2_000) for _ in range(3))
