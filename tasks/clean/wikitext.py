"""Wiki markup to readable text, in linear steps.

Set aside what is no markup (comments, nowiki, math, code); cut out references; resolve links,
brackets and tags; tidy the lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from tasks.clean.brackets import Brackets
from tasks.clean.calls import counted
from tasks.clean.expansion import Expander
from tasks.clean.lines import decode, tidy
from tasks.clean.links import gallery
from tasks.clean.marks import ALL, APOSTROPHE, ASIDE, DROPPED, PIPE
from tasks.clean.parser_functions import ERROR, VARIABLES
from tasks.clean.templates import is_furniture
from tasks.clean.wiki import Deadline, Ledger, Wiki

_VERBATIM = {"nowiki", "pre", "syntaxhighlight", "source"}
_FORMULA = {"math", "chem", "ce"}
_FURNITURE = {
    "gallery", "timeline", "score", "imagemap", "hiero", "graph", "mapframe", "maplink",
    "templatedata", "templatestyles", "inputbox", "categorytree", "includeonly",
}  # fmt: skip
_SET_ASIDE = re.compile(
    r"<(?:!--|((?i:" + "|".join(sorted(_VERBATIM | _FORMULA | _FURNITURE)) + r"))\b[^<>]*>)"
)
_CLOSERS = {
    name: re.compile(rf"</{name}\s*>", re.I) for name in _VERBATIM | _FORMULA | _FURNITURE
} | {"!--": re.compile("-->")}
_REFERENCE = re.compile(r"<(?i:ref)\b[^<>]*>|</(?i:ref)\s*>")
_HEADING = re.compile(r"\n=")
# `[[target]]` or `[[target|label]]` without a prefix: nine links of ten. One group, so that
# `split` gives the text and the labels in turn, without a call in Python.
_PLAIN_LINK = re.compile(r"\[\[(?:[^\[\]{}|<>\n:]*+\|)?+([^\[\]{}|<>\n:#\s][^\[\]{}|<>\n:]*+)\]\]")
# More characters than a page of MediaWiki may have.
_LARGEST = 5_000_000
_ASIDE_TOKEN = re.compile(f"{ASIDE}(\\d{{1,9}}){ASIDE}")


@dataclass
class Cleaned(Ledger):
    """A page's text, and what was dropped on the way.

    Attributes:
        text: paragraphs, headings, list items and rows of tables, one a line.
    """

    text: str = ""


_WIKI = Wiki()


def clean(text: str, wiki: Wiki = _WIKI, title: str = "", *, trace: bool = False) -> Cleaned:
    """Turn a page's wikitext into readable text.

    Args:
        text: the wikitext, its XML entities decoded.
        wiki: the wiki it is from.
        title: the page's title, which templates may show.
        trace: note what each rule did.

    Raises:
        PageTimeout: the page takes longer than `wiki.seconds`.
    """
    cleaned = Cleaned(trace=[] if trace else None)
    for mark in ALL:
        if mark in text:
            text = text.replace(mark, "")
    page = _Page(wiki, title, cleaned)
    text = page.show(text)
    page.deadline.check()
    text = tidy(text, cleaned)
    cleaned.text = page.restore(text).replace(PIPE, "|").replace(APOSTROPHE, "'").strip()
    return cleaned


class _Page:
    """One page's way through the steps; templates that are expanded go through them again.

    Attributes:
        deadline: the end of the page's time.
    """

    def __init__(self, wiki: Wiki, title: str, ledger: Ledger) -> None:
        self._wiki, self._ledger = wiki, ledger
        self._aside: list[str] = []
        self.deadline = Deadline(wiki.seconds)
        self._title = title
        self._expander: Expander | None = None
        self._expanding = False
        self._restored = 0

    def show(self, text: str) -> str:
        """The text that wikitext shows, with stand-ins and the marks of lines still in it."""
        text = self._set_aside(text)
        text = self._drop_references(text)
        text = self._show_plain_links(text)
        return Brackets(self._wiki, self._ledger, self.deadline, self.expand).run(text)

    def restore(self, text: str) -> str:
        """Put back what was set aside; what was set aside in a template may hold some itself."""
        for _ in range(3):
            if ASIDE not in text:
                break
            text = _ASIDE_TOKEN.sub(self._piece, text)
        return text.replace(ASIDE, "")

    def _piece(self, match: re.Match[str]) -> str:
        # A parser function may have cut or changed the number.
        number = int(match[1])
        piece = self._aside[number] if number < len(self._aside) else ""
        self._restored += len(piece)
        if self._restored > _LARGEST:
            # A template may repeat what it is given without end.
            self._ledger.drop("repetitions", piece)
            return ""
        return piece

    def expand(self, name: str, source: str) -> str | None:
        """A template of the wiki, or a parser function."""
        expanded = None if self._expanding else self._wikitext_of(name, source)
        if not expanded or ERROR in expanded or is_furniture(expanded):
            self._ledger.drop_template(counted(name), source)
            return None
        # What an expansion shows is not expanded again, however many braces it makes.
        self._expanding = True
        try:
            return self.show(expanded)
        finally:
            self._expanding = False

    def _wikitext_of(self, name: str, source: str) -> str | None:
        # Most names are those of templates, and most dumps at hand hold none.
        if not self._wiki.library and ":" not in name and name not in VARIABLES:
            return None
        if self._expander is None:
            self._expander = Expander(self._wiki, self._title, self._ledger, self.deadline)
        return self._expander.expand(source) if self._expander.knows(name) else None

    def _set_aside(self, text: str) -> str:
        """Cut out comments and furniture, and put placeholders for what is not wiki markup."""
        pieces: list[str] = []
        never: set[str] = set()
        pos = 0
        while match := _SET_ASIDE.search(text, pos):
            pieces.append(text[pos : match.start()])
            pos = match.end()
            name = (match[1] or "!--").lower()
            if match[0].endswith("/>"):
                continue
            # One failed search settles it for the rest of the page: that keeps the pass linear.
            end = None if name in never else _CLOSERS[name].search(text, pos)
            if end is None:
                never.add(name)
                continue
            inner, pos = text[pos : end.start()], end.end()
            pieces.append(self._stand_in(name, inner))
        return "".join(pieces) + text[pos:] if pieces else text

    def _stand_in(self, name: str, inner: str) -> str:
        """What stands for a piece of the page that is no wiki markup."""
        if name in _FORMULA:
            inner = " ".join(inner.split()).replace("{{", "{ {").replace("}}", "} }")
            inner = f"${inner}$" if name == "math" and inner else inner
        elif name == "gallery" and self._wiki.captions == "text":
            shown = gallery(self._show_plain_links(self._set_aside(inner)))
            self._ledger.keep("<gallery>", inner, shown)
            return shown
        elif name not in _VERBATIM:
            self._ledger.drop("comments" if name == "!--" else f"<{name}>", inner)
            return ""
        if not inner.strip():
            return ""
        self._aside.append(decode(inner if name == "nowiki" else inner.strip("\n")))
        self._ledger.keep(f"<{name}>", inner, self._aside[-1])
        return f"{ASIDE}{len(self._aside) - 1}{ASIDE}"

    def _show_plain_links(self, text: str) -> str:
        if self._ledger.trace is not None:
            for match in _PLAIN_LINK.finditer(text):
                self._ledger.note("links", match[0], match[1])
        return "".join(_PLAIN_LINK.split(text))

    def _drop_references(self, text: str) -> str:
        """Cut out `<ref>…</ref>`, nested ones too; a tag without its partner costs only itself."""
        before = len(text) - text.count(DROPPED)
        text = self._drop_plain_references(text)
        if _REFERENCE.search(text):
            text = _drop_nested_references(text)
        lost = before - len(text) + text.count(DROPPED)
        if lost:
            self._ledger.lost["references"] += lost
        return text

    def _drop_plain_references(self, text: str) -> str:
        """Nearly all: those that hold no other one. Splitting at the tags costs the least."""
        first, *others = text.split("<ref")
        pieces = [first]
        for piece in others:
            inner, closer, rest = piece.partition("</ref>")
            tag = inner.find(">")
            if tag < 0 or piece[0] not in " >/\n\t":
                pieces += ("<ref", piece)
                continue
            if inner[tag - 1] == "/":
                rest = piece[tag + 1 :]
            elif not closer:
                pieces += ("<ref", piece)
                continue
            pieces += (DROPPED, rest)
            if self._ledger.trace is not None:
                self._ledger.note("references", "<ref" + piece.removesuffix(rest), "")
        return "".join(pieces)


@lru_cache(maxsize=1 << 16)
def _drop_nested_references(text: str) -> str:
    partner: dict[int, int] = {}
    opened: list[int] = []
    matches = list(_REFERENCE.finditer(text))
    for match in matches:
        if match[0].startswith("</"):
            if opened:
                partner[opened.pop()] = match.end()
        elif not match[0].endswith("/>"):
            opened.append(match.start())
    pieces: list[str] = []
    pos, heading = 0, -1
    for match in matches:
        start = match.start()
        if start < pos:
            continue
        end = partner.get(start, match.end())
        # A reference does not span sections: its real end is missing, and this end is another's.
        if heading < start:
            found = _HEADING.search(text, start)
            heading = found.start() if found else len(text)
        if heading < end:
            end = match.end()
        pieces += (text[pos:start], DROPPED)
        pos = end
    return "".join(pieces) + text[pos:]
