"""Templates as readable text without Lua: a table from a template's name to what readers see.

Wikipedia's articles call some 100,000 templates, but a few hundred carry words and numbers *inside*
a sentence; without them "a wall of {{convert|5|m|ft}}" loses its number. The table is
`templates.txt`, which says how to read and to extend it. What is not in the table, and not defined
in the dump, is dropped by the caller, who counts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tasks.clean.calls import Call, Renderer
from tasks.clean.marks import APOSTROPHE, PIPE
from tasks.clean.names import template_name
from tasks.clean.renderers import RENDERERS
from tasks.core.errors import ConfigError

_TABLE = Path(__file__).with_name("templates.txt")
_MOST_REMEMBERED = 50_000
# Classes of the boxes that Wikipedia's own mobile view and its search leave out, too.
_BOX = re.compile(
    r"(?:<(?:div|table|span|ul|small)\b|\{\|)[^\n>]*class\s*=\s*[\"']?[^\"'<>\n]*"
    r"(?:infobox|navbox|[atoc]mbox|metadata|noprint|hatnote|dablink|sidebar|noexcerpt|stub)",
    re.I,
)


class Templates:
    """What is shown of the templates of a table.

    Args:
        renderers: by name, in lower case; a name may end or begin with `*`. None shows nothing.

    Attributes:
        find: the renderer of a template by the name that a call gives; None where there is none,
            or it shows nothing.
        knows: whether the table has a rule for a name, though it be to show nothing.
    """

    def __init__(self, renderers: Mapping[str, Renderer | None]) -> None:
        self._renderers = dict(renderers)
        # `*` alone is a template, too.
        self._beginnings = tuple(key[:-1] for key in renderers if key[1:].endswith("*"))
        self._endings = tuple(key[1:] for key in renderers if key[:-1].startswith("*"))
        # Asked for each call on each page: a hit costs no call in Python.
        self.find = lru_cache(maxsize=_MOST_REMEMBERED)(self._find)
        self.knows = lru_cache(maxsize=_MOST_REMEMBERED)(self._knows)

    @classmethod
    def read(cls, table: str, where: str) -> Templates:
        """Read a table in the form of `templates.txt`.

        Raises:
            ConfigError: a line is no rule.
        """
        renderers: dict[str, Renderer | None] = {}
        for number, line in enumerate(table.split("\n"), 1):
            if not line.strip() or line.startswith("#"):
                continue
            names, arrow, shown = line.partition(" =>")
            shown = shown.strip()
            if not arrow or (shown.startswith("@") and shown[1:] not in RENDERERS):
                raise ConfigError(
                    "This is no rule for templates", where=f"{where}, line {number}",
                    expected="`name, name => what is shown`", got=line,
                    fix="tasks/clean/templates.txt says how a rule is written",
                )  # fmt: skip
            renderer = RENDERERS[shown[1:]] if shown.startswith("@") else _pattern(shown)
            for name in names.split(", "):
                renderers[name.strip().lower().replace("_", " ")] = renderer
        return cls(renderers)

    def extended(self, table: str, where: str) -> Templates:
        """This table with another's rules before its own."""
        own = Templates.read(table, where)._renderers
        # Of names with a `*` the first wins that stands for a name.
        return Templates({**own, **self._renderers, **own})

    def _find(self, name: str) -> Renderer | None:
        key = self._key(name)
        return None if key is None else self._renderers[key]

    def _knows(self, name: str) -> bool:
        return self._key(name) is not None

    def _key(self, name: str) -> str | None:
        name = " ".join(template_name(name).lower().replace("_", " ").split())
        if name in self._renderers:
            return name
        if name.startswith(self._beginnings) or name.endswith(self._endings):
            return next(key for key in self._renderers if "*" in key and _stands_for(key, name))
        return None


def _stands_for(key: str, name: str) -> bool:
    """True where a name begins or ends as a key with a `*` says."""
    if len(key) == 1:
        return False
    return name.startswith(key[:-1]) if key[-1] == "*" else name.endswith(key[1:])


def is_furniture(expanded: str) -> bool:
    """True where an expanded template is a box beside or above the text: its class says so."""
    return _BOX.match(expanded.lstrip(" \n:*")[:400]) is not None


# A pattern is a list of texts, fields and optional parts; a field is the names of its arguments.
_FIELD = re.compile(r"\\(.)|\{\*([^{}]*)\}|\{([^{}]*)\}|([\[\]])")


def _pattern(shown: str) -> Renderer | None:
    if not shown:
        return None
    stack: list[list[Any]] = [[]]
    pos = 0
    for match in _FIELD.finditer(shown):
        stack[-1].append(_safe(shown[pos : match.start()]))
        pos = match.end()
        if match[1]:
            stack[-1].append({"n": "\n", "s": " "}.get(match[1], _safe(match[1])))
        elif match[2] is not None:
            stack[-1].append(_joined(match[2].replace("\\n", "\n")))
        elif match[3]:
            stack[-1].append(tuple(match[3].split("|")))
        elif match[4] == "[":
            stack.append([])
        elif len(stack) > 1:
            inner = stack.pop()
            stack[-1].append(inner)
    stack[-1].append(_safe(shown[pos:]))
    parts = stack[0]
    return lambda call: _fill(parts, call)[0]


def _safe(text: str) -> str:
    """Text that shows what it is, even where markup or another template's bar stands beside."""
    return text.replace("|", PIPE).replace("'", APOSTROPHE)


def _joined(separator: str) -> Renderer:
    return lambda call: separator.join(filter(None, call.positional))


def _fill(parts: Iterable[Any], call: Call) -> tuple[str, bool]:
    """The text of a pattern, and whether each of its fields has a value."""
    pieces, whole = [], True
    for part in parts:
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, list):
            text, filled = _fill(part, call)
            pieces.append(text if filled else "")
        else:
            text = part(call) if callable(part) else _field(part, call)
            whole = whole and bool(text)
            pieces.append(text)
    return "".join(pieces), whole


def _field(names: tuple[str, ...], call: Call) -> str:
    for name in names:
        if name == "last":
            values = [value for value in call.positional if value]
            if values:
                return values[-1]
        elif call[name]:
            return call[name]
    return ""


TEMPLATES = Templates.read(_TABLE.read_text(encoding="utf-8"), _TABLE.name)
