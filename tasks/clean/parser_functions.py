"""MediaWiki's parser functions and variables, as far as a dump can answer them.

Sources: mediawiki.org, `Help:Extension:ParserFunctions`, `Help:Magic words`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from urllib.parse import quote

from tasks.clean import names
from tasks.clean.expressions import ExpressionError, evaluate, shown_number
from tasks.clean.names import DEFAULTS
from tasks.clean.renderers import grouped
from tasks.clean.syntax import Node, Part
from tasks.clean.times import formatted

ERROR = '<strong class="error">'
_IS_ERROR = re.compile(r'<(?:strong|span|p|div)\b[^<>]*class="[^"]*\berror\b', re.I)
_LONGEST = 10_000
_KEPT_TAGS = {"nowiki", "math", "chem", "ce", "poem", "pre", "syntaxhighlight"}


@dataclass(frozen=True)
class Page:
    """What parser functions may ask of a page and its wiki."""

    title: str
    site: str
    language: str
    today: date | None
    library: Mapping[str, str]


Text = Callable[[list[Node]], str]
Function = Callable[[str, list[Part], Text, Page], str]


def _value(parts: list[Part], index: int, text: Text) -> str:
    """The text of an argument; parser functions know no names."""
    if index >= len(parts):
        return ""
    part = parts[index]
    value = text(part.value)
    return (f"{text(part.name)}={value}" if part.name is not None else value).strip()


def _if(first: str, parts: list[Part], text: Text, page: Page) -> str:
    return _value(parts, 0 if first else 1, text)


def _ifeq(first: str, parts: list[Part], text: Text, page: Page) -> str:
    return _value(parts, 1 if _same(first, _value(parts, 0, text)) else 2, text)


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def _iferror(first: str, parts: list[Part], text: Text, page: Page) -> str:
    if _IS_ERROR.search(first):
        return _value(parts, 0, text)
    return _value(parts, 1, text) if len(parts) > 1 else first


def _ifexpr(first: str, parts: list[Part], text: Text, page: Page) -> str:
    try:
        return _value(parts, 0 if first and evaluate(first) else 1, text)
    except ExpressionError as error:
        return f"{ERROR}{error}</strong>"


def _expr(first: str, parts: list[Part], text: Text, page: Page) -> str:
    try:
        return shown_number(evaluate(first)) if first else ""
    except ExpressionError as error:
        return f"{ERROR}{error}</strong>"


def _ifexist(first: str, parts: list[Part], text: Text, page: Page) -> str:
    """Of the wiki's pages only the templates are at hand; others count as being there."""
    space, colon, name = first.partition(":")
    known = not colon or space.lower() != "template" or name.strip() in page.library
    return _value(parts, 0 if first and known else 1, text)


def _switch(first: str, parts: list[Part], text: Text, page: Page) -> str:
    default: Part | None = None
    taken = default_taken = False
    for index, part in enumerate(parts):
        if part.name is None:
            case = text(part.value).strip()
            if index == len(parts) - 1:
                return case
            taken = taken or _same(first, case)
            default_taken = default_taken or case.lower() in DEFAULTS
            continue
        case = text(part.name).strip()
        if taken or _same(first, case):
            return text(part.value).strip()
        if default_taken or case.lower() in DEFAULTS:
            default, default_taken = part, False
    return text(default.value).strip() if default is not None else ""


def _time(first: str, parts: list[Part], text: Text, page: Page) -> str:
    return formatted(first, _value(parts, 0, text), page.today)


def _titleparts(first: str, parts: list[Part], text: Text, page: Page) -> str:
    pieces = first.split("/")
    count, start = _integer(_value(parts, 0, text)), _integer(_value(parts, 1, text))
    begin = start - 1 if start > 0 else start
    pieces = pieces[begin:] if start else pieces
    if count:
        pieces = pieces[:count]
    return "/".join(pieces)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


def _length(first: str, parts: list[Part], text: Text, page: Page) -> str:
    return str(len(first))


def _pos(first: str, parts: list[Part], text: Text, page: Page) -> str:
    found = first.find(_value(parts, 0, text) or " ", _integer(_value(parts, 1, text)))
    return str(found) if found >= 0 else ""


def _sub(first: str, parts: list[Part], text: Text, page: Page) -> str:
    start, length = _integer(_value(parts, 0, text)), _integer(_value(parts, 1, text))
    rest = first[start:]
    return rest[:length] if length else rest


def _replace(first: str, parts: list[Part], text: Text, page: Page) -> str:
    old = _value(parts, 0, text) or " "
    new = _value(parts, 1, text)
    return first.replace(old, new) if len(first) * (len(new) + 1) < _LONGEST * 100 else first


def _explode(first: str, parts: list[Part], text: Text, page: Page) -> str:
    pieces = first.split(_value(parts, 0, text) or " ")
    index = _integer(_value(parts, 1, text))
    return pieces[index] if -len(pieces) <= index < len(pieces) else ""


def _count(first: str, parts: list[Part], text: Text, page: Page) -> str:
    return str(first.count(_value(parts, 0, text) or " "))


def _pad(first: str, parts: list[Part], text: Text) -> str:
    """What is missing to a length, of the filling that the call names."""
    length = min(_integer(_value(parts, 0, text)), 500)
    filling = (_value(parts, 1, text) if len(parts) > 1 else "0") or "0"
    missing = max(length - len(first), 0)
    return (filling * (missing // len(filling) + 1))[:missing]


def _padleft(first: str, parts: list[Part], text: Text, page: Page) -> str:
    return _pad(first, parts, text) + first


def _padright(first: str, parts: list[Part], text: Text, page: Page) -> str:
    return first + _pad(first, parts, text)


def _formatnum(first: str, parts: list[Part], text: Text, page: Page) -> str:
    raw = _value(parts, 0, text).upper() in ("R", "NOSEP")
    plain = first.replace(",", "")
    return plain if raw else grouped(plain)


def _tag(first: str, parts: list[Part], text: Text, page: Page) -> str:
    name = first.lower()
    return f"<{name}>{_value(parts, 0, text)}</{name}>" if name in _KEPT_TAGS else ""


def _plural(first: str, parts: list[Part], text: Text, page: Page) -> str:
    many = 1 if len(parts) > 1 else 0
    return _value(parts, 0 if first in ("1", "-1") else many, text)


def _urlencode(first: str, parts: list[Part], text: Text, page: Page) -> str:
    return quote(first.replace(" ", "_" if _value(parts, 0, text) == "WIKI" else "+"), safe="+")


def _first_part(first: str, parts: list[Part], text: Text, page: Page) -> str:
    return _value(parts, 0, text)


def _nothing(first: str, parts: list[Part], text: Text, page: Page) -> str:
    return ""


def _of_first(change: Callable[[str], str]) -> Function:
    return lambda first, parts, text, page: change(first)


def _name(title: str) -> str:
    return title.partition(":")[2] or title if title[:9].lower() == "template:" else title


def _dated(pattern: str) -> Callable[[Page], str]:
    return lambda page: formatted(pattern, "", page.today)


FUNCTIONS: dict[str, Function] = {
    "#if": _if, "#ifeq": _ifeq, "#iferror": _iferror, "#ifexpr": _ifexpr, "#expr": _expr,
    "#ifexist": _ifexist, "#switch": _switch, "#time": _time, "#timel": _time,
    "#titleparts": _titleparts, "#len": _length, "#pos": _pos, "#sub": _sub,
    "#replace": _replace, "#explode": _explode, "#count": _count, "#tag": _tag,
    "lc": _of_first(str.lower), "uc": _of_first(str.upper),
    "lcfirst": _of_first(lambda text: text[:1].lower() + text[1:]),
    "ucfirst": _of_first(lambda text: text[:1].upper() + text[1:]),
    "padleft": _padleft, "padright": _padright, "formatnum": _formatnum, "plural": _plural,
    "urlencode": _urlencode, "anchorencode": _of_first(lambda text: text.replace(" ", "_")),
    "pagename": _of_first(_name), "fullpagename": _of_first(str), "int": _of_first(str),
    "grammar": _first_part, "gender": _first_part, "#language": _of_first(str),
    "#dateformat": _of_first(str), "#formatdate": _of_first(str), "ns": _nothing,
    "fullurl": _nothing, "localurl": _nothing, "canonicalurl": _nothing, "filepath": _nothing,
    "defaultsort": _nothing, "displaytitle": _nothing, "#property": _nothing,
    "#statements": _nothing, "#section": _nothing, "#lst": _nothing, "#coordinates": _nothing,
}  # fmt: skip

FUNCTIONS |= {
    name: FUNCTIONS[english] for name, english in names.FUNCTIONS.items() if english in FUNCTIONS
}

VARIABLES: dict[str, Callable[[Page], str]] = {
    "!": lambda page: "|",
    "=": lambda page: "=",
    **dict.fromkeys(
        ("PAGENAME", "FULLPAGENAME", "ARTICLEPAGENAME", "SUBJECTPAGENAME", "ROOTPAGENAME"),
        lambda page: page.title,
    ),
    **dict.fromkeys(
        ("PAGENAMEE", "FULLPAGENAMEE"), lambda page: quote(page.title.replace(" ", "_"))
    ),
    "BASEPAGENAME": lambda page: page.title.rpartition("/")[0] or page.title,
    "SUBPAGENAME": lambda page: page.title.rpartition("/")[2],
    "TALKPAGENAME": lambda page: f"Talk:{page.title}",
    **dict.fromkeys(("NAMESPACE", "NAMESPACEE", "SUBJECTSPACE"), lambda page: ""),
    "NAMESPACENUMBER": lambda page: "0",
    "SITENAME": lambda page: page.site,
    **dict.fromkeys(("CONTENTLANGUAGE", "CONTENTLANG"), lambda page: page.language),
    **dict.fromkeys(("CURRENTYEAR", "LOCALYEAR"), _dated("Y")),
    **dict.fromkeys(("CURRENTMONTH", "LOCALMONTH", "CURRENTMONTH2"), _dated("m")),
    **dict.fromkeys(("CURRENTMONTH1", "LOCALMONTH1"), _dated("n")),
    **dict.fromkeys(("CURRENTMONTHNAME", "LOCALMONTHNAME"), _dated("F")),
    "CURRENTMONTHABBREV": _dated("M"),
    **dict.fromkeys(("CURRENTDAY", "LOCALDAY"), _dated("j")),
    **dict.fromkeys(("CURRENTDAY2", "LOCALDAY2"), _dated("d")),
    "CURRENTDAYNAME": _dated("l"),
    "CURRENTDOW": _dated("w"),
    "CURRENTWEEK": _dated("W"),
    "CURRENTTIMESTAMP": _dated("YmdHis"),
}
