"""Each filter drops what it is for, for the reason it states, and lets prose through."""

from __future__ import annotations

import pytest

from tasks.clean.filters import FILTERS, Thresholds, count_sentences, measure, reason_to_drop

DEFAULTS = Thresholds(
    min_words=20,
    min_sentences=2,
    min_mean_word_length=2.5,
    max_mean_word_length=12.0,
    max_symbol_share=0.25,
    max_unpunctuated_share=0.99,
    min_stop_words=2,
)
PROSE = (
    "The wall was built by the people of the town. It has stood there for a long time, and it is "
    "likely to stay with them for many more years."
)
JUNK = {
    "too_few_words": "The wall is high. It stays.",
    "too_few_sentences": "the wall of the town and the gate of the town and " * 4 + "more.",
    "odd_word_length": "I a. " * 30 + "The of to.",
    "too_many_symbols": "The wall | of {stone} | to [stay] | and #town. " * 6,
    "unpunctuated": "The price of one\nThe price of two. Of three\nand to four\n" * 4,
    "no_stop_words": "Buy cheap watches now! Click here today! " * 6,
}


@pytest.mark.parametrize("reason", FILTERS)
def test_junk_is_dropped_for_its_reason(reason: str) -> None:
    assert reason_to_drop(JUNK[reason], "en", DEFAULTS) == reason


def test_prose_stays() -> None:
    assert reason_to_drop(PROSE, "en", DEFAULTS) is None


def test_other_languages_are_not_asked_for_english_words() -> None:
    german = "Das Haus steht am Ufer des Flusses. Es wurde vor langer Zeit aus Stein gebaut. " * 2
    assert reason_to_drop(german, "de", DEFAULTS) is None
    assert reason_to_drop(german, "en", DEFAULTS) == "no_stop_words"


def test_scripts_without_spaces_are_counted_by_characters() -> None:
    chinese = (
        "长城是中国古代的军事工程。它修筑于春秋战国时期，历代皆有修缮，今天的长城大多建于明代。"
    )
    measures = measure(chinese, "zh", 9)
    assert measures.words == 19
    assert measures.sentences == 2
    assert measures.mean_word_length == 0
    assert reason_to_drop(chinese * 2, "zh", DEFAULTS) is None


def test_sentences_end_where_punkt_says() -> None:
    # Worked out by hand; a split at each period would count five.
    text = "Dr. Smith went to Washington, D.C. in May. He was tired.\nA title"
    assert count_sentences(text, "en", 99) == 3
    assert count_sentences(text, "en", 2) == 2
    assert count_sentences("", "en", 2) == 0
