"""Templates' wikitext as a tree: texts, arguments `{{{…}}}` and calls `{{…}}`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(r"\{\{+|\}\}+|\[\[|\]\]|\||=|<nowiki>(?:[^<]|<(?!/nowiki>))*+</nowiki>", re.I)
_COMMENT = re.compile(r"<!--(?:[^-]|-(?!->))*+(?:-->|\Z)")
_NOINCLUDE = re.compile(r"<noinclude\b[^<>]*>.*?(?:</noinclude\s*>|\Z)", re.I | re.S)
_ONLYINCLUDE = re.compile(r"<onlyinclude\s*>(.*?)(?:</onlyinclude\s*>|\Z)", re.I | re.S)
_INCLUDEONLY = re.compile(r"</?(?:includeonly|noinclude|onlyinclude)\b[^<>]*>", re.I)
# Deeper is broken or hostile; walking the tree takes as many calls.
_MAX_DEPTH = 60


@dataclass
class Part:
    """What stands between two bars: a value, and a name where there is a `=`."""

    value: list[Node] = field(default_factory=list)
    name: list[Node] | None = None


@dataclass
class Argument:
    """`{{{name|default}}}`."""

    name: list[Node]
    default: list[Node] | None


@dataclass
class Braces:
    """`{{head|part|…}}`."""

    head: list[Node]
    parts: list[Part]


Node = str | Argument | Braces


@dataclass
class _Open:
    """A run of braces, or a `[[`, that is not closed yet."""

    mark: str
    count: int
    parts: list[Part] = field(default_factory=lambda: [Part()])


def transcluded(source: str) -> str:
    """What of a template's page is there for those that call it."""
    source = _COMMENT.sub("", source)
    if "<" not in source:
        return source
    if only := _ONLYINCLUDE.findall(source):
        source = "".join(only)
    return _INCLUDEONLY.sub("", _NOINCLUDE.sub("", source))


def parse(source: str) -> list[Node]:
    """Read wikitext; what is not closed is text."""
    stack = [_Open("", 0)]
    pos = 0
    for match in _TOKEN.finditer(source):
        _add(stack, source[pos : match.start()])
        pos = match.end()
        token = match[0]
        if token[0] == "{":
            if len(stack) < _MAX_DEPTH:
                stack.append(_Open("{", len(token)))
            else:
                _add(stack, token)
        elif token[0] == "}":
            _close(stack, len(token))
        elif token == "[[":
            if len(stack) < _MAX_DEPTH:
                stack.append(_Open("[", 2))
            else:
                _add(stack, token)
        elif token == "]]":
            if stack[-1].mark == "[":
                _flatten(stack)
            _add(stack, token)
        elif stack[-1].mark == "{" and token == "|":
            stack[-1].parts.append(Part())
        elif stack[-1].mark == "{" and token == "=" and len(stack[-1].parts) > 1:
            part = stack[-1].parts[-1]
            if part.name is None:
                part.name, part.value = part.value, []
            else:
                _add(stack, token)
        else:
            _add(stack, token)
    _add(stack, source[pos:])
    while len(stack) > 1:
        _flatten(stack)
    return stack[0].parts[0].value


def _add(stack: list[_Open], text: str) -> None:
    if text:
        stack[-1].parts[-1].value.append(text)


def _close(stack: list[_Open], count: int) -> None:
    """Match a run of closing braces with the innermost open runs, three or two at a time."""
    while count >= 2:
        # A link that is open here is none.
        while stack[-1].mark == "[" and any(item.mark == "{" for item in stack):
            _flatten(stack)
        top = stack[-1]
        if top.mark != "{":
            break
        taken = 3 if min(count, top.count) >= 3 else 2
        node = _node(top, taken)
        top.count -= taken
        count -= taken
        stack.pop()
        if top.count >= 2:
            stack.append(_Open("{", top.count, [Part([node])]))
            continue
        if top.count:
            _add(stack, "{")
        stack[-1].parts[-1].value.append(node)
    if count:
        _add(stack, "}" * count)


def _node(top: _Open, taken: int) -> Node:
    head, *parts = top.parts
    if taken == 2:
        return Braces(head.value, parts)
    if not parts:
        return Argument(head.value, None)
    default = parts[0]
    # A default knows no names: its `=` is text.
    value = default.value if default.name is None else [*default.name, "=", *default.value]
    return Argument(head.value, value)


def _flatten(stack: list[_Open]) -> None:
    """The innermost open mark is text after all."""
    top = stack.pop()
    target = stack[-1].parts[-1].value
    target.append("[[" if top.mark == "[" else "{" * top.count)
    for index, part in enumerate(top.parts):
        if index:
            target.append("|")
        if part.name is not None:
            target += [*part.name, "="]
        target += part.value
