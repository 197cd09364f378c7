"""Dumps for `clean.py`: gensim's sample of the English Wikipedia, grown.

Copies differ in titles and ids, and in two of five words that occur only once in the sample, whose
letters are turned: the vocabulary grows about as that of real text does.
"""

from __future__ import annotations

import bz2
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape, unescape

SAMPLES = "gensim/test/test_data"
SAMPLE = f"{SAMPLES}/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
SHORT = 3_000
_VOWELS, _CONSONANTS = "aeiou", "bcdfghjklmnprstvw"
_PAGE = re.compile(r"  <page>.*?</page>\n", re.S)
_FIELD = r"<{0}>(.*?)</{0}>"
_TITLE, _ID = (re.compile(_FIELD.format(name)) for name in ("title", "id"))
_NAMESPACE = re.compile(_FIELD.format("ns"))
_TEXT = re.compile(r"(<text[^>]*>)(.*?)</text>", re.S)
_WORD = re.compile(r"(?<![&;\w|{=/.<])[a-z]{5,}(?![\w;=}./>&])")
# Where a page is cut: at blank lines and before headings.
_PART = re.compile(r"\n(?=\n|==)")


class Dump(NamedTuple):
    """A dump's XML in pieces."""

    head: str
    pages: list[str]
    tail: str

    def text(self) -> str:
        """The whole of it."""
        return "".join((self.head, *self.pages, self.tail))


def read(path: Path) -> Dump:
    """A dump whose tags stand on lines of their own."""
    source = bz2.decompress(path.read_bytes()).decode()
    start, end = source.index("  <page>"), source.rindex("</mediawiki>")
    return Dump(source[:start], _PAGE.findall(source[start:end]), source[end:])


def grown(dump: Dump, copies: int) -> Dump:
    """A dump's pages so many times."""
    counts = Counter(word for page in dump.pages for word in _WORD.findall(page))
    rare = {word for word, count in counts.items() if count == 1}
    pages = [_copy(page, number, rare) for number in range(copies) for page in dump.pages]
    return Dump(dump.head, pages, dump.tail)


def shortened(dump: Dump) -> Dump:
    """A dump's articles as pages of about 3 kB each, cut between paragraphs."""
    pages = []
    for page in dump.pages:
        title, space, text = _TITLE.search(page), _NAMESPACE.search(page), _TEXT.search(page)
        if title and text and space and space[1] == "0" and "<redirect" not in page:
            for number, part in enumerate(_parts(unescape(text[2])), 1):
                name = f"{title[1]} (part {number})"
                pages.append(page_xml(len(pages) + 1, name, escape(part)))
    return Dump(dump.head, pages, dump.tail)


def page_xml(number: int, title: str, text: str) -> str:
    """A page as it stands in a dump; title and text escaped."""
    return (
        f"  <page>\n    <title>{title}</title>\n    <ns>0</ns>\n    <id>{number}</id>\n"
        f"    <revision>\n      <id>{number}</id>\n      <model>wikitext</model>\n"
        f'      <text xml:space="preserve">{text}</text>\n    </revision>\n  </page>\n'
    )


def _parts(text: str) -> Iterator[str]:
    held = ""
    for part in _PART.split(text):
        held += f"\n{part}"
        if len(held) >= SHORT:
            yield held.strip()
            held = ""
    if held.strip():
        yield held.strip()


def _copy(page: str, number: int, rare: set[str]) -> str:
    if not number:
        return page
    page = _TITLE.sub(lambda found: f"<title>{found[1]} (copy {number})</title>", page, count=1)
    page = _ID.sub(lambda found: f"<id>{int(found[1]) + number * 10_000_000}</id>", page, count=1)
    start, text, end = page.partition("<text")
    return start + text + _WORD.sub(lambda found: _turned(found[0], number, rare), end)


def _turned(word: str, number: int, rare: set[str]) -> str:
    if word not in rare or zlib.crc32(f"{word}{number}".encode()) % 5 > 1:
        return word
    return "".join(_next(letter, number) for letter in word)


def _next(letter: str, step: int) -> str:
    for letters in (_VOWELS, _CONSONANTS):
        place = letters.find(letter)
        if place >= 0:
            return letters[(place + step) % len(letters)]
    return letter
