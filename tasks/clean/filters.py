"""Quality filters: each has a name, a threshold, and drops a document for one stated reason.

The measures are those of Gopher (Rae et al. 2021, arXiv:2112.11446, table A1) and C4 (Raffel et
al. 2020, arXiv:1910.10683, section 2.2). The thresholds are set so that real encyclopaedia articles
pass: lists and tables repeat themselves, and hold numbers, more than the web pages of these papers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from tasks.clean.measures import Measures
from tasks.clean.splitters import Splitter, split_words

# Words between spaces decide where they pass a threshold by this factor or miss it by as much;
# the splitter's words decide in between. nltk takes 200 times as long as `str.split`.
_CLEAR = 1.5
# In characters. A share in a longer document does not hang on a few words.
_LONGEST_SPLIT = 50_000


class Thresholds(BaseModel):
    """What a document must reach to stay. Shares are fractions of 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    splitter: Splitter = Field("nltk", description="Who tells sentences and words apart in doubt")
    min_words: int = Field(20, ge=0, description="Drop documents with fewer words")
    max_words: int = Field(1_000_000, ge=1, description="Drop documents with more words")
    min_mean_word_length: float = Field(2.5, ge=0, description="Shorter words are no prose")
    max_mean_word_length: float = Field(12.0, gt=0, description="Longer words are no prose")
    max_hashes: float = Field(0.1, ge=0, description="Most number signs (#) a word")
    max_ellipses: float = Field(0.1, ge=0, description="Most ellipses (… or ...) a word")
    max_bullet_lines: float = Field(
        0.9, ge=0, le=1, description="Largest share of lines that begin with a bullet"
    )
    max_ellipsis_lines: float = Field(
        0.3, ge=0, le=1, description="Largest share of lines that end with an ellipsis"
    )
    max_unlettered_words: float = Field(
        0.5, ge=0, le=1, description="Largest share of words without a letter; Gopher's is 0.2"
    )
    min_stop_words: int = Field(
        2, ge=0, le=8, description="Fewest of a language's eight commonest words, where known"
    )
    max_duplicate_lines: float = Field(
        0.3, ge=0, le=1, description="Largest share of lines that stood before"
    )
    max_duplicate_line_characters: float = Field(
        0.2, ge=0, le=1, description="Largest share of characters in lines that stood before"
    )
    max_duplicate_paragraphs: float = Field(
        0.3, ge=0, le=1, description="Largest share of paragraphs that stood before"
    )
    max_duplicate_paragraph_characters: float = Field(
        0.2, ge=0, le=1, description="Largest share of characters in paragraphs that stood before"
    )
    max_top_2_gram: float = Field(
        0.5, ge=0, le=1, description="Share of the commonest 2-gram; Gopher's is 0.2"
    )
    max_top_3_gram: float = Field(
        0.5, ge=0, le=1, description="Share of the commonest 3-gram; Gopher's is 0.18"
    )
    max_top_4_gram: float = Field(
        0.5, ge=0, le=1, description="Share of the commonest 4-gram; Gopher's is 0.16"
    )
    max_repeated_5_grams: float = Field(
        0.4, ge=0, le=1, description="Share of repeated 5-grams; Gopher's is 0.15"
    )
    max_repeated_6_grams: float = Field(
        0.4, ge=0, le=1, description="Share of repeated 6-grams; Gopher's is 0.14"
    )
    max_repeated_7_grams: float = Field(
        0.4, ge=0, le=1, description="Share of repeated 7-grams; Gopher's is 0.13"
    )
    max_repeated_8_grams: float = Field(
        0.4, ge=0, le=1, description="Share of repeated 8-grams; Gopher's is 0.12"
    )
    max_repeated_9_grams: float = Field(
        0.4, ge=0, le=1, description="Share of repeated 9-grams; Gopher's is 0.11"
    )
    max_repeated_10_grams: float = Field(
        0.4, ge=0, le=1, description="Share of repeated 10-grams; Gopher's is 0.1"
    )
    max_lorem_ipsum: int = Field(0, ge=0, description="Most times that a text says lorem ipsum")
    max_curly_brackets: float = Field(0.1, ge=0, description="Most curly brackets a word")
    min_sentences: int = Field(2, ge=0, description="Drop documents with fewer sentences")
    max_unpunctuated_share: float = Field(
        0.99, ge=0, le=1, description="Largest share of text in lines that end no sentence"
    )


class Verdict(NamedTuple):
    """Why a document is dropped.

    Attributes:
        rule: one of `FILTERS`.
        value: what was measured.
        limit: the threshold that it missed.
        note: what else helps to judge it, such as the language found.
    """

    rule: str
    value: float
    limit: float
    note: str = ""


@dataclass(frozen=True)
class Rule:
    """A measure and the threshold that it is held against.

    Attributes:
        threshold: the field of `Thresholds`; its first syllable says which side passes.
        value: the measure. It is given the threshold, for most can stop once that is settled.
        counts_words: whether it depends on how words are told apart.
    """

    threshold: str
    value: Callable[[Measures, float], float]
    counts_words: bool = False

    def fails(self, value: float, limit: float) -> bool:
        """Whether a value is on the wrong side of the threshold."""
        return value < limit if self.threshold.startswith("min_") else value > limit


def _top_share(n: int, measures: Measures, limit: float) -> float:
    return measures.repetition.top_share(n, limit)


def _repeated_share(n: int, measures: Measures, limit: float) -> float:
    return measures.repetition.repeated_share(n, limit)


FILTERS: dict[str, Rule] = {
    "too_few_words": Rule("min_words", lambda m, _: m.count, True),
    "too_many_words": Rule("max_words", lambda m, _: m.count, True),
    "too_few_sentences": Rule("min_sentences", lambda m, limit: m.sentences(limit)),
    "short_words": Rule(
        "min_mean_word_length", lambda m, limit: limit if m.unspaced else m.mean_word_length, True
    ),
    "long_words": Rule("max_mean_word_length", lambda m, _: m.mean_word_length, True),
    "hashes": Rule("max_hashes", lambda m, _: m.per_word("#"), True),
    "ellipses": Rule("max_ellipses", lambda m, _: m.ellipses, True),
    "curly_brackets": Rule("max_curly_brackets", lambda m, _: m.per_word("{", "}"), True),
    "bullet_lines": Rule("max_bullet_lines", lambda m, _: m.bullet_lines),
    "ellipsis_lines": Rule("max_ellipsis_lines", lambda m, _: m.ellipsis_lines),
    "unpunctuated": Rule("max_unpunctuated_share", lambda m, _: m.unpunctuated),
    "unlettered_words": Rule(
        "max_unlettered_words", lambda m, limit: m.unlettered_words(limit / _CLEAR), True
    ),
    "no_stop_words": Rule("min_stop_words", lambda m, limit: m.stop_words(limit)),
    "lorem_ipsum": Rule("max_lorem_ipsum", lambda m, _: m.lorem_ipsum),
    "duplicate_lines": Rule("max_duplicate_lines", lambda m, _: m.duplicate_lines[0]),
    "duplicate_line_characters": Rule(
        "max_duplicate_line_characters", lambda m, _: m.duplicate_lines[1]
    ),
    "duplicate_paragraphs": Rule(
        "max_duplicate_paragraphs", lambda m, _: m.duplicate_paragraphs[0]
    ),
    "duplicate_paragraph_characters": Rule(
        "max_duplicate_paragraph_characters", lambda m, _: m.duplicate_paragraphs[1]
    ),
    **{f"top_{n}_gram": Rule(f"max_top_{n}_gram", partial(_top_share, n)) for n in (2, 3, 4)},
    **{
        f"repeated_{n}_grams": Rule(f"max_repeated_{n}_grams", partial(_repeated_share, n))
        for n in range(5, 11)
    },
}


def reason_to_drop(text: str, language: str, thresholds: Thresholds) -> Verdict | None:
    """The first filter that a document fails, or None where it passes all.

    Args:
        text: a cleaned document.
        language: a wiki's code; it picks the models of sentences and the stop words.
        thresholds: what it must reach.
    """
    measures = Measures(text, language, thresholds.splitter)
    verdict, doubt = _judge(measures, thresholds)
    asked = thresholds.splitter != "none" and len(text) <= _LONGEST_SPLIT and not measures.unspaced
    if doubt and asked:
        words = split_words(text, language, thresholds.splitter)
        verdict, _ = _judge(Measures(text, language, thresholds.splitter, words), thresholds)
    return verdict


def too_little_left(text: str, language: str, thresholds: Thresholds) -> Verdict | None:
    """The verdict on a document that passed all filters and lost paragraphs since; None if long."""
    words = Measures(text, language, thresholds.splitter).count
    if words >= thresholds.min_words:
        return None
    return Verdict("too_few_words_left", words, thresholds.min_words, "after repeated paragraphs")


def _judge(measures: Measures, thresholds: Thresholds) -> tuple[Verdict | None, bool]:
    """The verdict, and whether a rule on the way to it depends on how words are told apart."""
    doubt = False
    for name, rule in FILTERS.items():
        limit = getattr(thresholds, rule.threshold)
        value = rule.value(measures, limit)
        doubt |= rule.counts_words and limit / _CLEAR < value < limit * _CLEAR
        if rule.fails(value, limit):
            return Verdict(name, value, limit), doubt
    return None, doubt
