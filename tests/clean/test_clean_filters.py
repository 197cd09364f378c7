"""Each filter drops what it is for, for the reason it states, and lets prose through.

`DATATROVE` is what datatrove 0.10.1 drops (with spaCy's words); all else is worked out by hand.
"""

from __future__ import annotations

import builtins
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.clean import splitters
from tasks.clean.filters import FILTERS, Thresholds, Verdict, reason_to_drop
from tasks.clean.measures import Measures
from tasks.clean.repetition import Repetition
from tasks.clean.splitters import count_sentences, require, split_words
from tasks.clean.words import words_of
from tasks.core.errors import ConfigError

DEFAULTS = Thresholds()
# Gopher's own limits (table A1), for the rules whose defaults are wider.
GOPHER = Thresholds(
    max_unlettered_words=0.2,
    max_top_2_gram=0.2, max_top_3_gram=0.18, max_top_4_gram=0.16,
    max_repeated_5_grams=0.15, max_repeated_6_grams=0.14, max_repeated_7_grams=0.13,
    max_repeated_8_grams=0.12, max_repeated_9_grams=0.11, max_repeated_10_grams=0.1,
)  # fmt: skip
PROSE = (
    "The wall was built by the people of the town. It has stood there for a long time, and it is "
    "likely to stay with them for many more years."
)
CHINESE = "长城是中国古代的军事工程。它修筑于春秋战国时期，历代皆有修缮，今天的长城大多建于明代。"
NUMBERED = "\n".join(f"The {n} people of town {n} have {n} walls to see." for n in range(20))
JUNK = {
    "too_few_words": "The wall is high. It stays.",
    "too_few_sentences": "the wall of the town and the gate of the town and " * 4 + "more.",
    "short_words": "I a. " * 30 + "The of to.",
    "long_words": "The of. " + "wallstonetowngate " * 30,
    "hashes": "The wall of #stone and the #gate of the #town. It is #built to #stay. " * 2,
    "ellipses": "The wall... of stone... and... the gate... It is built... to stay... for long.",
    "curly_brackets": "The {wall} of {stone} and the {gate} of it. " * 3,
    "bullet_lines": "\n".join(f"- The wall of town {n} and of {n + 1}." for n in range(20)),
    "ellipsis_lines": "\n".join(f"The wall of the town of {n} and so on…" for n in range(20)),
    "unpunctuated": "\n".join(f"The price of the wall of town {n} and more" for n in range(20)),
    "unlettered_words": "The wall of and. " + " ".join(f"{n} {n + 7}." for n in range(5)),
    "no_stop_words": "Buy cheap watches now! Click here today! Get rich quick! Call us at once. "
    "Sale ends tonight, so hurry before stock runs out.",
    "lorem_ipsum": PROSE + " Lorem ipsum dolor sit amet.",
    "duplicate_lines": "\n".join(["Of the.", "To be."] * 4) + "\n" + PROSE,
    "duplicate_line_characters": "\n".join([PROSE, "And.", "Of a town.", "To a wall.", PROSE]),
    "duplicate_paragraphs": "The first.\n\nA b.\n\nA b.\n\nA b.\n\n" + PROSE.replace(". ", ".\n"),
    "duplicate_paragraph_characters": f"{PROSE}\nSo\n\nA.\n\nB.\n\nC.\n\n{PROSE}\nSo",
}
SAMPLES = {**JUNK, "prose": PROSE, "numbered": NUMBERED}
# Of the samples, by rule, with the paper's limits.
DATATROVE = {
    "too_few_words": (
        50,
        "curly_brackets duplicate_lines duplicate_paragraphs ellipses hashes long_words"
        " lorem_ipsum no_stop_words prose too_few_sentences too_few_words unlettered_words",
    ),
    "too_few_sentences": (
        5,
        "curly_brackets ellipses hashes long_words lorem_ipsum prose short_words"
        " too_few_sentences too_few_words",
    ),
    "short_words": (3, "bullet_lines ellipsis_lines short_words unlettered_words"),
    "long_words": (10, "long_words"),
    "bullet_lines": (0.9, "bullet_lines"),
    "ellipsis_lines": (0.3, "ellipsis_lines"),
    "no_stop_words": (2, "long_words no_stop_words too_few_words"),
    "lorem_ipsum": (0, "lorem_ipsum"),
    "duplicate_lines": (0.3, "duplicate_lines duplicate_paragraphs"),
    "duplicate_line_characters": (
        0.2, "duplicate_line_characters duplicate_paragraph_characters",
    ),
    "duplicate_paragraphs": (0.3, "duplicate_paragraphs"),
    "duplicate_paragraph_characters": (0.2, "duplicate_paragraph_characters"),
    "top_4_gram": (
        0.16,
        "bullet_lines curly_brackets duplicate_lines ellipses ellipsis_lines hashes long_words"
        " no_stop_words numbered short_words too_few_sentences too_few_words unlettered_words"
        " unpunctuated",
    ),
    "repeated_9_grams": (
        0.11,
        "curly_brackets duplicate_line_characters duplicate_lines duplicate_paragraph_characters"
        " ellipsis_lines hashes long_words short_words too_few_sentences unpunctuated",
    ),
    # datatrove counts marks as words without letters; it drops five more, of short sentences.
    "unlettered_words": (0.2, "bullet_lines numbered unlettered_words"),
}  # fmt: skip
WIDE_OPEN = Thresholds.model_construct(
    **{
        rule.threshold: 0 if rule.threshold.startswith("min_") else 1 << 30
        for rule in FILTERS.values()
    }
)


def _only(**limits: float) -> Thresholds:
    return WIDE_OPEN.model_copy(update=limits)


@pytest.mark.parametrize("reason", JUNK)
def test_junk_is_dropped_for_its_reason(reason: str) -> None:
    field = FILTERS[reason].threshold
    only = _only(**{field: getattr(DEFAULTS, field)})
    verdict = reason_to_drop(JUNK[reason], "en", only)
    assert verdict is not None
    assert (verdict.rule, verdict.limit) == (reason, getattr(DEFAULTS, field))
    assert reason_to_drop(JUNK[reason], "en", WIDE_OPEN) is None
    assert reason_to_drop(PROSE, "en", only) is None


@pytest.mark.parametrize("rule", DATATROVE)
def test_verdicts_are_datatroves(rule: str) -> None:
    limit, dropped = DATATROVE[rule]
    only = _only(**{FILTERS[rule].threshold: limit})
    ours = {name for name, text in SAMPLES.items() if reason_to_drop(text, "en", only)}
    assert ours == set(dropped.split())


@pytest.mark.parametrize("n", range(2, 11))
def test_repeated_n_grams_are_dropped_at_their_own_limit(n: int) -> None:
    phrase = " ".join(["the", "wall", "of", "a", "town", "to", "see", "and", "have", "seen"][:n])
    text = " ".join(f"{phrase} {chr(97 + i) * 4}" for i in range(24))
    kind, limits = ("top_{}_gram", range(2, 5)) if n < 5 else ("repeated_{}_grams", range(5, 11))
    for size in limits[limits.index(n) :]:
        verdict = reason_to_drop(text, "en", _only(**{f"max_{kind.format(size)}": 0.4}))
        assert (verdict is not None) == (size == n)


def test_every_rule_has_its_junk() -> None:
    ngrams = {f"top_{n}_gram" for n in (2, 3, 4)} | {f"repeated_{n}_grams" for n in range(5, 11)}
    assert JUNK.keys() | ngrams | {"too_many_words"} == FILTERS.keys()
    assert reason_to_drop(PROSE, "en", _only(max_words=9)) == Verdict("too_many_words", 30, 9)


@pytest.mark.parametrize("limits", [DEFAULTS, GOPHER])
def test_prose_stays(limits: Thresholds) -> None:
    assert reason_to_drop(PROSE, "en", limits) is None
    assert reason_to_drop(NUMBERED, "en", DEFAULTS) is None


def test_shares_of_n_grams_are_those_of_gopher() -> None:
    # By hand: "a b" stands three times, 3 characters each, in 23.
    assert _of_words("a b c a b d a b e f g h").top_share(2, 0) == pytest.approx(9 / 23)
    # After "a b c d e" comes the same again: 5 characters of letters in 25 with spaces.
    repetition = _of_words("a b c d e x a b c d e y z")
    assert repetition.repeated_share(5, 0) == pytest.approx(5 / 25)
    assert repetition.repeated_share(6, 0) == 0
    # Two characters a word: the ten characters stand twice, and not as more.
    text = "長城是中国古代的軍事。長城是中国古代的軍事、"
    assert Repetition(text, None, len(text)).repeated_share(5, 0) == pytest.approx(10 / len(text))


def test_bounds_never_change_a_verdict() -> None:
    chance = random.Random(5)
    for _ in range(300):
        words = chance.choices("a bb ccc dddd é".split() + [str(n) for n in range(60)], k=80)
        words += words[: chance.randrange(40)]
        repetition = _of_words(" ".join(words))
        for n in range(2, 11):
            share = Repetition.top_share if n < 5 else Repetition.repeated_share
            exact = share(repetition, n, -1)
            limit = chance.random() / 3
            assert (share(repetition, n, limit) > limit) == (exact > limit)


def _of_words(text: str) -> Repetition:
    return Repetition(text, words_of(text.encode()), len(text))


def test_other_languages_are_not_asked_for_english_words() -> None:
    german = "Das Haus steht am Ufer. Es wurde vor langer Zeit aus Stein und Holz in der Stadt und "
    german += "unter großer Mühe gebaut, damit es lange stehe."
    assert reason_to_drop(german, "de", DEFAULTS) is None
    assert reason_to_drop(german, "xx", DEFAULTS) is None
    assert reason_to_drop(german, "en", DEFAULTS) == Verdict("no_stop_words", 0, 2)


def test_scripts_without_spaces_are_counted_by_characters() -> None:
    measures = Measures(CHINESE, "zh", "nltk")
    assert measures.count == 19
    assert measures.sentences(9) == 2
    assert measures.mean_word_length == 0
    assert reason_to_drop(CHINESE, "zh", DEFAULTS.model_copy(update={"min_words": 19})) is None
    assert reason_to_drop(CHINESE * 9, "zh", DEFAULTS) is not None
    thai = "กำแพงเมืองจีนเป็นกำแพงที่มีป้อมคั่นเป็นช่วงๆ ของจีนสมัยโบราณ\nสร้างในสมัยพระเจ้าจิ๋นซีฮ่องเต้เป็นครั้งแรก"
    assert reason_to_drop(thai, "th", DEFAULTS) is None


def test_sentences_end_where_punkt_says() -> None:
    # Worked out by hand; a split at each period would count five.
    text = "Dr. Smith went to Washington, D.C. in May. He was tired.\nA title"
    assert count_sentences(text, "en", 99) == 3
    assert count_sentences(text, "en", 2) == 2
    assert count_sentences("", "en", 2) == 0
    assert count_sentences(text, "en", 99, "none") == 5


def test_words_are_nltks() -> None:
    # As nltk.word_tokenize gives them.
    expected = ["He", "ca", "n't", "go", ",", "can", "he", "?", "(", "No", ".", ")"]
    assert split_words("He can't go, can he? (No.)", "en", "nltk") == expected
    assert split_words("He can't go", "en", "none") == ["He", "can't", "go"]
    assert split_words("qa qa, qa", "xx", "nltk") == ["qa", "qa,", "qa"]


def test_the_splitter_decides_what_spaces_cannot() -> None:
    # By hand: six between spaces, of which nltk makes twelve.
    text = "stone,and of,the\nwall,to be,it\ngate,on in,a"
    assert reason_to_drop(text, "en", _only(min_words=8)) is None
    assert reason_to_drop(text, "en", _only(min_words=9, splitter="none")) is not None
    # Far from the limit nobody is asked.
    assert reason_to_drop(text, "en", _only(min_words=10)) == Verdict("too_few_words", 6, 10)


def test_a_worker_that_asks_nltk_loads_no_more() -> None:
    code = (
        "import sys; from tasks.clean.splitters import split_words;"
        "split_words('One is here. Two is there.', 'en', 'nltk');"
        "print({'sklearn', 'scipy', 'pandas', 'torch'} & set(sys.modules));"
        "import scipy"
    )
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


def test_spacy_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "spacy":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    splitters._spacy.cache_clear()
    with pytest.raises(ConfigError, match=r"megaline\[spacy\]"):
        require("spacy", "en")
    require("nltk", "en")


def test_spacy_tells_words_and_sentences_apart() -> None:
    pytest.importorskip("spacy")
    assert split_words("He can't go.", "en", "spacy") == ["He", "ca", "n't", "go", "."]
    assert count_sentences("One is here. Two is there.", "en", 9, "spacy") == 2
    with pytest.raises(ConfigError, match="cannot split"):
        require("spacy", "qqq")
