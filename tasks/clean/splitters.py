"""Sentences and words: nltk's or spaCy's where a language has them, else by marks and spaces."""

from __future__ import annotations

import re
from functools import cache
from itertools import islice
from typing import Any, Literal

from tasks.core import punkt
from tasks.core.errors import ConfigError

Splitter = Literal["nltk", "spacy", "none"]

# Scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana, ideographs.
UNSPACED = r"[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
_FULL_WIDTH_END = re.compile(r"[。！？།]+")
_SENTENCE_END = re.compile(
    r"(?<![.!?…।།])[.!?…।།]++[\"'”’)\]]*+\s++(?=\S)|[。！？]++[\"'”’」』）)】》〉]*+(?=.)"
)
_PUNKT_LANGUAGES = {
    "en": "english", "simple": "english", "cs": "czech", "da": "danish", "nl": "dutch",
    "et": "estonian", "fi": "finnish", "fr": "french", "de": "german", "el": "greek",
    "it": "italian", "ml": "malayalam", "no": "norwegian", "nb": "norwegian", "pl": "polish",
    "pt": "portuguese", "ru": "russian", "sl": "slovene", "es": "spanish", "sv": "swedish",
    "tr": "turkish",
}  # fmt: skip
_SPACY_CODES = {"simple": "en", "no": "nb"}


def split_words(text: str, language: str, splitter: Splitter) -> list[str]:
    """Words and marks as the splitter tells them apart.

    Args:
        text: any text.
        language: a wiki's code, such as `en` or `zh-yue`.
        splitter: `none` divides at spaces, as nltk does for a language it has no model for.
    """
    if splitter == "spacy":
        return [token.text for token in _spacy(_code(language))(text) if not token.is_space]
    if splitter == "none" or _code(language) not in _PUNKT_LANGUAGES:
        return text.split()
    words = punkt.module("nltk.tokenize.destructive").NLTKWordTokenizer()
    sentences = punkt.load(_PUNKT_LANGUAGES[_code(language)])
    return [
        word
        for line in text.split("\n")
        for sentence in sentences.tokenize(line)
        for word in words.tokenize(sentence)
    ]


def count_sentences(text: str, language: str, enough: int, splitter: Splitter = "nltk") -> int:
    """The number of sentences, or `enough`, whichever is less.

    A line break ends a sentence: it ends a paragraph here.
    """
    # Each line holds at least one. That settles nearly every article without a splitter, and
    # without importing one.
    lines = list(islice(filter(str.strip, text.split("\n")), enough))
    count = len(lines)
    for line in lines:
        if count >= enough:
            break
        count += _sentences(line, language, splitter) - 1
    return min(count, enough)


def require(splitter: Splitter, language: str) -> None:
    """Load the splitter.

    Raises:
        ConfigError: spaCy is not installed, or does not know the language.
    """
    if splitter == "spacy":
        _spacy(_code(language))


def _sentences(line: str, language: str, splitter: Splitter) -> int:
    if splitter == "spacy":
        return sum(1 for _ in _spacy(_code(language))(line).sents)
    # Punkt's models know no full-width marks, and no Tibetan.
    full_width = sum(1 for _ in _FULL_WIDTH_END.finditer(line.rstrip("。！？།")))
    if splitter == "none" or full_width:
        return 1 + sum(1 for _ in _SENTENCE_END.finditer(line.strip()))
    sentences = punkt.load(_PUNKT_LANGUAGES.get(_code(language), "english"))
    return sum(1 for _ in sentences.span_tokenize(line))


def _code(language: str) -> str:
    return language.partition("-")[0]


@cache
def _spacy(code: str) -> Any:
    """spaCy's rules for a language; its trained models are not needed for words and sentences."""
    try:
        import spacy
    except ImportError as error:
        raise ConfigError(
            "spaCy is not installed",
            where="clean.splitter",
            expected="the package `spacy`",
            got="splitter: spacy",
            fix="pip install 'megaline[spacy]', or set splitter to nltk",
        ) from error
    try:
        pipeline = spacy.blank(_SPACY_CODES.get(code, code))
    except ImportError as error:
        raise ConfigError(
            "spaCy cannot split this language",
            where="clean.splitter",
            expected="a language that spaCy has rules for, with the package that they need",
            got=f"{code}: {error}".splitlines()[0],
            fix="set splitter to nltk or none",
        ) from error
    pipeline.add_pipe("sentencizer")
    # A document is cut into lines or measured whole; none is refused for its length.
    pipeline.max_length = 1 << 40
    return pipeline
