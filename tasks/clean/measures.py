"""A document in numbers, each worked out when a filter first asks for it."""

from __future__ import annotations

import re
from functools import cached_property

from tasks.clean.repetition import Repetition
from tasks.clean.splitters import UNSPACED, Splitter, count_sentences
from tasks.clean.words import Words, most_unspaced, words_of

_LETTER = re.compile(r"[^\W\d_]")
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_UNSPACED_RUN = re.compile(f"{UNSPACED}+")
_LOREM_IPSUM = (b"orem ipsum", b"orem Ipsum", b"OREM IPSUM")
WITHOUT_TERMINALS = ("th", "lo")
_BLANK_LINES = re.compile(r"\n{2,}")
_BULLETS = ("•", "-", "*", "–", "·")
_ELLIPSES = ("…", "...")
TERMINALS = (
    ".", "!", "?", '"', "'", ")", "…", "。", "！", "？", "」", "』", "）", "”", "’", ":", "।", "།",
    "؟", "۔", "።", "։", "။", "។",
)  # fmt: skip
# Gopher's eight for English; for the others the eight commonest in running text.
_STOP_WORDS = {
    "en": "the be to of and that have with", "simple": "the be to of and that have with",
    "de": "der die und in den von zu das", "fr": "de la le et les des en un",
    "es": "de la que el en y a los", "it": "di e il la che in a per",
    "pt": "de a o que e do da em", "nl": "de van een het en in is dat",
    "sv": "och i att det som en på är", "da": "og i at det er en til af",
    "pl": "w i na z do się nie to", "cs": "a v se na je že o s",
    "ru": "и в не на что с по как", "uk": "і в на що з не до та",
    "bg": "на и да в се от за с", "tr": "ve bir bu da de için ile olarak",
}  # fmt: skip
STOP_WORDS = {language: frozenset(words.split()) for language, words in _STOP_WORDS.items()}
_SAMPLE_WORDS = 50
# More than an English article on Chinese holds, less than a Japanese list of English names.
_UNSPACED_SHARE = 0.2


class Measures:
    """What the filters compare.

    Args:
        text: a cleaned document.
        language: a wiki's code, such as `en` or `zh-yue`.
        splitter: see `splitters`.
        words: its words and marks, where a splitter has told them apart; else they are what lies
            between spaces.
    """

    def __init__(
        self, text: str, language: str, splitter: Splitter, words: list[str] | None = None
    ) -> None:
        self.text, self.language, self.splitter = text, language, splitter
        self._split = words
        self._lines = text.split("\n")

    @cached_property
    def unspaced(self) -> int:
        """Characters of scripts that do not divide words, where those are much of the text."""
        least = _UNSPACED_SHARE * len(self.text)
        if most_unspaced(self._data) <= least:
            return 0
        found = len(self.text) - sum(map(len, self._between))
        return found if found > least else 0

    @cached_property
    def count(self) -> int:
        """Words; in unspaced scripts, half the characters and the rest.

        What a splitter calls a word counts where it has a letter or digit; between spaces a mark
        seldom stands alone.
        """
        if self.unspaced:
            rest = " ".join(self._between).split()
            return self.unspaced // 2 + sum(1 for word in rest if _LETTER_OR_DIGIT.search(word))
        if self._split is None:
            return len(self._spaced.hashes)
        return sum(1 for word in self._split if _LETTER_OR_DIGIT.search(word))

    @cached_property
    def mean_word_length(self) -> float:
        """Characters a word; 0 where the script has no spaces."""
        if self.unspaced:
            return 0.0
        return (len(self.text) - self._spaced.blanks) / max(1, self.count)

    def unlettered_words(self, limit: float) -> float:
        """Share of words without a letter; of characters where the script has no spaces. If at most
        `limit`, a bound that is too."""
        if self.unspaced:
            # Vowel signs and the marks between Tibetan syllables are no letters by themselves.
            rest = "".join("".join(self._between).split())
            lettered = self.unspaced + sum(map(str.isalpha, rest))
            return 1 - lettered / max(1, len(self._solid))
        if self._split is None:
            bound = 1 - self._spaced.lettered / max(1, self.count)
            if bound <= limit:
                return bound
        # `str.isalpha` settles most words at a fifth of a search's price.
        lettered = sum(1 for word in self._words if word.isalpha() or _LETTER.search(word))
        return 1 - lettered / max(1, self.count)

    def per_word(self, *signs: str) -> float:
        """How often signs occur, a word."""
        return sum(self._data.count(sign.encode()) for sign in signs) / max(1, self.count)

    def stop_words(self, enough: float) -> float:
        """How many different stop words occur, counted until they are enough; `enough` where none
        are known for the language."""
        stops = STOP_WORDS.get(self.language)
        if stops is None:
            return enough
        found = 0
        # In prose the first words settle it.
        some = self._split or self.text.split(None, _SAMPLE_WORDS)
        found = len(stops.intersection(map(str.lower, some[:_SAMPLE_WORDS])))
        if found < enough:
            found = len(stops.intersection(map(str.lower, self._words)))
        return found

    @cached_property
    def bullet_lines(self) -> float:
        """Share of lines that begin with a bullet."""
        return sum(line.lstrip().startswith(_BULLETS) for line in self._lines) / len(self._lines)

    @cached_property
    def ellipses(self) -> float:
        """How often ellipses occur, a word."""
        return self.per_word(*_ELLIPSES)

    @cached_property
    def ellipsis_lines(self) -> float:
        """Share of lines that end with an ellipsis."""
        if not self.ellipses:
            return 0.0
        return sum(line.rstrip().endswith(_ELLIPSES) for line in self._lines) / len(self._lines)

    @cached_property
    def unpunctuated(self) -> float:
        """Share of characters in lines that end without a sentence's end; 0 where a language has
        no mark for it."""
        if self.language in WITHOUT_TERMINALS:
            return 0.0
        bare = sum(len(line) for line in self._lines if not line.rstrip().endswith(TERMINALS))
        return bare / max(1, sum(map(len, self._lines)))

    @cached_property
    def duplicate_lines(self) -> tuple[float, float]:
        """Share of lines that stood before, and of the text's characters that are in them."""
        return _duplicates([line for line in self._lines if line], len(self.text))

    @cached_property
    def duplicate_paragraphs(self) -> tuple[float, float]:
        """The same for what blank lines divide."""
        if "" not in self._lines[1:-1]:
            return 0.0, 0.0
        return _duplicates(_BLANK_LINES.split(self.text.strip()), len(self.text))

    def sentences(self, enough: float) -> int:
        """Sentences, counted no further than `enough`: splitters take longer than all the rest."""
        return count_sentences(self.text, self.language, int(enough), self.splitter)

    @cached_property
    def repetition(self) -> Repetition:
        """The shares of n-grams, of words between spaces: a mark is repeated with its word."""
        if self.unspaced:
            return Repetition(self._solid, None, len(self.text))
        return Repetition(self.text, self._spaced, len(self.text))

    @cached_property
    def lorem_ipsum(self) -> int:
        """How often the printers' dummy text begins."""
        if not any(words in self._data for words in _LOREM_IPSUM):
            return 0
        return self.text.lower().count("lorem ipsum")

    @cached_property
    def _data(self) -> bytes:
        """The text in UTF-8, in which signs are found faster."""
        return self.text.encode("utf-8", "surrogatepass")

    @cached_property
    def _spaced(self) -> Words:
        return words_of(self._data)

    @cached_property
    def _between(self) -> list[str]:
        """What stands between runs of characters of unspaced scripts."""
        return _UNSPACED_RUN.split(self.text)

    @cached_property
    def _words(self) -> list[str]:
        return self.text.split() if self._split is None else self._split

    @cached_property
    def _solid(self) -> str:
        """All characters but spaces."""
        return "".join(self.text.split())


def _duplicates(parts: list[str], length: int) -> tuple[float, float]:
    unique = set(parts)
    characters = sum(map(len, parts)) - sum(map(len, unique))
    return (len(parts) - len(unique)) / max(1, len(parts)), characters / max(1, length)
