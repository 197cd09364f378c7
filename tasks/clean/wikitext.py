"""Wiki markup to readable text, in five linear steps.

Set aside what is no markup (comments, nowiki, math, code); cut out references; resolve brackets
and tags; tidy the lines; decode entities.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from dataclasses import dataclass, field

from tasks.clean.brackets import Brackets, Namespaces
from tasks.clean.lines import DROPPED, tidy
from tasks.clean.templates import APOSTROPHE, PIPE, superscript

# Control characters cannot occur in XML, so they serve as stand-ins: this one is put round the
# number of a piece set aside.
_ASIDE = "\x03"

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
_RAISED = re.compile(r"<sup>\s*([-+−–]?\d+)\s*</sup>")
_ASIDE_TOKEN = re.compile(f"{_ASIDE}(\\d+){_ASIDE}")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")
_INVISIBLE = {"\xa0": " ", "\u200b": "", "\xad": "", "\u2060": ""}


@dataclass
class Cleaned:
    """A page's text, and what was dropped on the way.

    Attributes:
        text: paragraphs, headings and list items, one a line.
        templates: dropped templates by name.
        table_rows: lines of unclosed tables that were dropped.
        unclosed: brackets that never closed, or closed nothing.
    """

    text: str = ""
    templates: Counter[str] = field(default_factory=Counter)
    table_rows: int = 0
    unclosed: int = 0


def clean(text: str, namespaces: Namespaces | None = None) -> Cleaned:
    """Turn a page's wikitext into readable text.

    Args:
        text: the wikitext, its XML entities decoded.
        namespaces: the wiki's own names of files and categories.
    """
    aside: list[str] = []
    text = _set_aside(text, aside)
    text = _drop_references(text)
    if "<sup" in text:
        text = _RAISED.sub(lambda match: superscript(match[1]), text)
    machine = Brackets(namespaces or Namespaces())
    text = machine.run(text)
    text, table_rows = tidy(text)
    if aside:
        text = _ASIDE_TOKEN.sub(lambda match: aside[int(match[1])], text)
    text = _decode(text.replace(PIPE, "|").replace(APOSTROPHE, "'"))
    for character, shown in _INVISIBLE.items():
        text = text.replace(character, shown)
    text = text.strip()
    return Cleaned(text, machine.dropped, table_rows, machine.unclosed)


def _set_aside(text: str, aside: list[str]) -> str:
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
        if name in _FORMULA:
            inner = " ".join(inner.split()).replace("{{", "{ {").replace("}}", "} }")
            inner = f"${inner}$" if name == "math" else inner
        elif name not in _VERBATIM:
            continue
        if inner.strip():
            pieces.append(f"{_ASIDE}{len(aside)}{_ASIDE}")
            aside.append(inner if name == "nowiki" else inner.strip("\n"))
    return "".join(pieces) + text[pos:] if pieces else text


def _drop_references(text: str) -> str:
    """Cut out `<ref>…</ref>`, nested ones too; a tag without its partner costs only itself."""
    if "<ref" not in text and "<REF" not in text and "<Ref" not in text:
        return text
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


def _decode(text: str) -> str:
    """Character entities, and once more what was escaped twice."""
    for _ in range(2):
        if "&" not in text:
            break
        text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    return text
