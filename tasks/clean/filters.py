"""Quality filters: each has a name, a threshold, and drops a document for one stated reason.

The measures are those of Gopher (Rae et al. 2021, arXiv:2112.11446, table A1) and C4 (Raffel et
al. 2020, arXiv:1910.10683, section 2.2), set so that real encyclopaedia articles pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

# One search each ends at the first hit, which in prose is near; a set of all words would not.
_STOP_WORDS = [
    re.compile(rf"\b(?:{word}|{word.capitalize()})\b")
    for word in ("the", "be", "to", "of", "and", "that", "have", "with")
]
_WORD = re.compile(r"\w+")
_SYMBOL = re.compile(r"[#{}\[\]<>|\\^~=_*@•…]")
_TERMINALS = (
    ".",
    "!",
    "?",
    '"',
    "'",
    ")",
    "…",
    "。",
    "！",
    "？",
    "」",
    "』",
    "）",
    "”",
    "’",
    ":",
    "।",
)
# Scripts without spaces between words: a word is taken as two characters.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_FULL_WIDTH_END = re.compile(r"[。！？]+")
_PUNKT_LANGUAGES = {
    "en": "english", "simple": "english", "cs": "czech", "da": "danish", "nl": "dutch",
    "et": "estonian", "fi": "finnish", "fr": "french", "de": "german", "el": "greek",
    "it": "italian", "ml": "malayalam", "no": "norwegian", "nb": "norwegian", "pl": "polish",
    "pt": "portuguese", "ru": "russian", "sl": "slovene", "es": "spanish", "sv": "swedish",
    "tr": "turkish",
}  # fmt: skip


@dataclass(frozen=True)
class Thresholds:
    """What a document must reach to stay; the fields' names are those of `CleanConfig`."""

    min_words: int
    min_sentences: int
    min_mean_word_length: float
    max_mean_word_length: float
    max_symbol_share: float
    max_unpunctuated_share: float
    min_stop_words: int


@dataclass(frozen=True)
class Measures:
    """A document in numbers.

    Attributes:
        words: what spaces divide; in unspaced scripts, half the characters.
        sentences: by nltk's Punkt, with the language's own model where there is one; counted no
            further than was asked.
        mean_word_length: characters a word; 0 where the script has no spaces.
        symbol_share: symbols of markup and code a word.
        unpunctuated_share: characters in lines that end without a sentence's end.
        stop_words: how many of eight common English words occur; None in other languages.
    """

    words: int
    sentences: int
    mean_word_length: float
    symbol_share: float
    unpunctuated_share: float
    stop_words: int | None


def reason_to_drop(text: str, language: str, thresholds: Thresholds) -> str | None:
    """The name of the first filter that a document fails, or None where it passes all."""
    measures = measure(text, language, thresholds.min_sentences)
    for name, fails in FILTERS.items():
        if fails(measures, thresholds):
            return name
    return None


FILTERS: dict[str, Callable[[Measures, Thresholds], bool]] = {
    "too_few_words": lambda m, t: m.words < t.min_words,
    "too_few_sentences": lambda m, t: m.sentences < t.min_sentences,
    "odd_word_length": lambda m, t: (
        m.mean_word_length > 0
        and not t.min_mean_word_length <= m.mean_word_length <= t.max_mean_word_length
    ),
    "too_many_symbols": lambda m, t: m.symbol_share > t.max_symbol_share,
    "unpunctuated": lambda m, t: m.unpunctuated_share > t.max_unpunctuated_share,
    "no_stop_words": lambda m, t: m.stop_words is not None and m.stop_words < t.min_stop_words,
}


def measure(text: str, language: str, enough_sentences: int) -> Measures:
    """Count what the filters compare.

    Args:
        text: a cleaned document.
        language: the wiki's code, such as `en`; it picks the sentence model and the stop words.
        enough_sentences: counting stops there, for Punkt takes longer than all the rest.
    """
    spaced, unspaced = _UNSPACED.subn(" ", text)
    words = _WORD.findall(spaced) if unspaced else text.split()
    letters = sum(map(len, words))
    count = len(words) + unspaced // 2
    lines = text.split("\n")
    bare = sum(len(line) for line in lines if not line.rstrip().endswith(_TERMINALS))
    return Measures(
        words=count,
        sentences=count_sentences(text, language, enough_sentences),
        mean_word_length=0.0 if unspaced > letters else letters / max(1, len(words)),
        symbol_share=len(_SYMBOL.findall(text)) / max(1, count),
        unpunctuated_share=bare / max(1, sum(map(len, lines))),
        stop_words=sum(1 for word in _STOP_WORDS if word.search(text))
        if language in ("en", "simple")
        else None,
    )


def count_sentences(text: str, language: str, enough: int) -> int:
    """The number of sentences, or `enough`, whichever is less; by nltk's Punkt."""
    lines = [line for line in text.split("\n") if line.strip()]
    # Each line holds at least one, as a line break ends a paragraph here (Punkt takes it for a
    # space). That settles nearly every article without Punkt, and without importing nltk.
    count = len(lines)
    for line in lines:
        if count >= enough:
            break
        count += _sentences(line, language) - 1
    return min(count, enough)


def _sentences(line: str, language: str) -> int:
    tokenizer = _punkt(_PUNKT_LANGUAGES.get(language.partition("-")[0], "english"))
    # Punkt's models know no full-width marks.
    full_width = sum(1 for _ in _FULL_WIDTH_END.finditer(line.rstrip("。！？")))
    return full_width + sum(1 for _ in tokenizer.span_tokenize(line))


@cache
def _punkt(language: str) -> Any:
    """nltk's tokenizer with the model that comes as a package: nltk's own is a download."""
    import punkt
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    model = punkt.load_model(language)
    parameters = PunktParameters()
    parameters.abbrev_types = set(model.abbrev_types)
    parameters.collocations = set(model.collocations)
    parameters.sent_starters = set(model.sent_starters)
    parameters.ortho_context.update(model.ortho_context)
    return PunktSentenceTokenizer(parameters)
