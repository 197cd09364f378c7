"""Odd values cost their own call or page, and no piece of input takes more than linear time."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest

from tasks.clean import pages
from tasks.clean.examination import examine
from tasks.clean.pages import Options
from tasks.clean.repair import repair
from tasks.clean.rules import Rules, apply
from tasks.clean.splitters import _SENTENCE_END, count_sentences
from tasks.clean.tables import rows
from tasks.clean.wikitext import clean
from tasks.core.errors import InputError

ENGLISH = Path(__file__).parents[1] / "data" / "wiki" / "english.xml"
NINES = "9" * 5_000


@pytest.mark.parametrize(
    "call",
    [
        f"{{{{convert|1{'0' * 400}|km|mi}}}}",
        f"{{{{convert|{NINES}|km}}}}",
        f"{{{{ordinal|{NINES}}}}}",
        f"{{{{age|{NINES}}}}}",
        "{{#time:t|9999-12-31}}",
        "{{#if: x | {{#time:t|9999-12-31}} }}",
    ],
)
def test_an_odd_value_costs_its_own_call(call: str) -> None:
    cleaned = clean(f"The wall {call} stays, {{{{convert|2|km|mi}}}} long.")
    assert cleaned.text == "The wall stays, 2 kilometres (1.2 mi) long."
    assert cleaned.templates.total() == 1


def test_a_page_under_the_glass_fails_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> None:
        raise RuntimeError("cannot read this")

    monkeypatch.setattr(pages, "clean", broken)
    with pytest.raises(InputError, match=r"cannot be cleaned.*Stone Wall.*cannot read this"):
        examine(ENGLISH, "Stone Wall", Options(), lambda done: None)


def test_time_grows_with_the_length_alone() -> None:
    start = time.thread_time()
    assert clean(f"a {{{{#time:Y|a{' ' * 12_000}b}}}} b").text == "a b"
    assert count_sentences("中。x" + "." * 30_000, "zh", 9) == 2
    assert rows("\n|a\n" + "b\n" * 200_000).startswith("a\nb")
    assert rows("\n|" + "style=a|" * 100_000 + "b") == "b"
    assert repair("aâ€™" * 20_000 + "\nb") == "a'" * 20_000 + "\nb"
    # Each took from half a second to minutes when it was quadratic.
    assert time.thread_time() - start < 2


def test_sentences_end_where_they_did_before() -> None:
    closers = r"[”’」』）\"')]"
    before = re.compile(
        r"[.!?…।།]+[\"'”’)\]]*\s+(?=\S)"
        rf"|[。！？]+(?![。！？]){closers}*(?!{closers})(?=.)"
    )
    chance = random.Random(5)
    for _ in range(3_000):
        text = "".join(chance.choices("ab.!…।\"') 。！」", k=12))
        assert [m.span() for m in _SENTENCE_END.finditer(text)] == [
            m.span() for m in before.finditer(text)
        ]


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("他说：“好。”", 1), ("他说：「好。」", 1), ('他说："好。"', 1), ("「好。」他说。", 2),
        ("好。（见上。）", 2), ("好！好？好。", 3), ("（好。）", 1),
        ("『好。』」と言った。", 2), ("好。。", 1),
    ],
)  # fmt: skip
def test_a_closing_quote_belongs_to_its_sentence(line: str, sentences: int) -> None:
    assert count_sentences(line, "zh", 9) == sentences


def test_a_tibetan_article_stays() -> None:
    text = (
        "བོད་ནི་ས་གནས་ཤིག་ཡིན། དེའི་རྒྱལ་ས་ནི་ལྷ་ས་ཡིན། བོད་ཀྱི་སྐད་ཡིག་ནི་བོད་སྐད་ཡིན། "
        "མི་མང་པོ་ཞིག་བོད་ལ་གནས་ཡོད། ས་ཆ་འདི་ནི་ཧ་ཅང་མཐོ་བ་ཡིན།"
    )
    assert apply(text, "bo", Rules())[1].verdict is None
    assert count_sentences(text, "bo", 9) == 5
