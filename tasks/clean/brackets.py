"""The stack machine over wiki markup's brackets: templates, tables, links, variants and tags.

Every open bracket collects what it shows in its own buffer. A bracket that closes hands its text
to the one around it, or drops it; a bracket that never closes hands over what it collected, so
unbalanced markup costs its own brackets and never the rest of the page. The work is linear in the
page's length, whatever the page holds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tasks.clean.lines import DROPPED
from tasks.clean.templates import render

# Nesting beyond this is broken or hostile; it bounds the cost of joining buffers level by level.
_MAX_DEPTH = 100

_BLOCK_TAGS = {
    "br", "hr", "p", "div", "li", "ul", "ol", "dl", "dd", "dt", "blockquote", "center", "poem",
    "tr", "h1", "h2", "h3", "h4", "h5", "h6", "caption",
}  # fmt: skip
_INLINE_TAGS = {
    "abbr", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i",
    "ins", "kbd", "mark", "noinclude", "nobr", "nowiki", "onlyinclude", "q", "rb", "ref",
    "references", "rp", "rt", "ruby", "s", "samp", "small", "span", "strike", "strong", "sub",
    "sup", "td", "th", "time", "tt", "u", "var", "wbr", "math", "chem", "ce", "pre", "source",
    "syntaxhighlight", "languages", "translate", "indicator", "img", "a", "tbody", "thead",
    "section", "gallery", "timeline", "score", "imagemap", "hiero", "graph", "mapframe",
    "maplink", "templatedata", "templatestyles", "inputbox", "categorytree", "includeonly",
}  # fmt: skip

# Each alternative begins with a literal, so that the regex engine skips plain text fast.
_TOKEN = re.compile(
    r"\[\[(?:([^\[\]{}|<>\n]*)(?:\|([^\[\]{}|<>\n]*))?\]\])?"
    r"|\]\]"
    r"|\{\{\{(?![{!])|\{\{|\{\||\{(?<=-\{)"
    r"|\}\}|\}-"
    r"|\|\}(?!\})"
    r"|\[(?:(?i:https?|ftps?|irc|news|mailto|git|svn):|//)"
    r"|</?([a-zA-Z][a-zA-Z0-9]*)\b[^<>]*>"
)
_INSIDE_BRACKET = re.compile(r"[^\[\]\n]*")
_URL = re.compile(r"[^\s\[\]<>\"|{}]*")
_LANGUAGE_PREFIX = re.compile(r"(?:[a-z]{2,3}(?:-[a-z]{2,8})*|simple)")
_MEDIA_FILE = re.compile(
    r"[^:]+:.*\.(?:jpe?g|png|gif|svg|tiff?|webp|xcf|og[agv]|webm|pdf|djvu|mp3|wav|flac|midi?)\s*",
    re.I | re.S,
)
_LONGEST_TITLE = 300
_VARIANT_FLAGS = re.compile(r"[A-Za-z; -]*")
_OTHER_PREFIXES = {"doi", "rfc", "hdl", "bug", "mw", "wp", "wt", "s", "q", "b", "d", "m", "n", "v"}
_SHOWN_VARIANTS = ("zh-hans", "zh-cn", "zh", "zh-hant", "zh-tw", "sr-ec", "sr")


@dataclass(frozen=True)
class Namespaces:
    """Which link prefixes (lower case) are no text: files and categories."""

    hidden: frozenset[str] = frozenset({"file", "image", "media", "category"})

    @classmethod
    def of(cls, local: Iterable[str]) -> Namespaces:
        """English names, which work on every wiki, and the wiki's own."""
        return cls(cls.hidden | {name.lower().replace("_", " ") for name in local})


class Brackets:
    """Reads one page.

    Attributes:
        dropped: templates that were dropped, by name.
        unclosed: brackets that never closed, or closed nothing.
    """

    def __init__(self, namespaces: Namespaces) -> None:
        self._hidden = namespaces.hidden
        self.dropped: Counter[str] = Counter()
        self.unclosed = 0
        self._kinds: list[str] = []
        self._buffers: list[list[str]] = [[]]
        self._open: Counter[str] = Counter()
        self._too_deep: Counter[str] = Counter()

    def run(self, text: str) -> str:
        """The text that a page shows, with sentinels, blank lines and line marks still in it."""
        self._text, pos = text, 0
        search = _TOKEN.search
        handlers = self._handlers()
        while match := search(text, pos):
            start = match.start()
            if start > pos:
                self._buffers[-1].append(text[pos:start])
            pos = handlers[match[0][:2] if match[0][0] in "[]{}|" else "<"](match)
        self._buffers[-1].append(text[pos:])
        self._unwind(0)
        return "".join(self._buffers[0])

    def _handlers(self) -> dict[str, Callable[[re.Match[str]], int]]:
        handlers: dict[str, Callable[[re.Match[str]], int]] = {
            "[[": self._link, "]]": self._close_link,
            "{{": self._open_braces, "}}": self._close_braces,
            "{|": self._open_table, "|}": self._close_table,
            "{": self._open_variant, "}-": self._close_variant,
            "<": self._tag,
        }  # fmt: skip
        return {**handlers, **{f"[{char}": self._external for char in "/hfinmgsHFINMGS"}}

    def _push(self, kind: str) -> None:
        if len(self._kinds) >= _MAX_DEPTH:
            self._too_deep[kind] += 1
            self.unclosed += 1
            return
        self._kinds.append(kind)
        self._open[kind] += 1
        self._buffers.append([])

    def _pop(self, kind: str) -> str | None:
        """What the innermost open bracket of a kind collected; None where there is none."""
        if self._too_deep[kind]:
            self._too_deep[kind] -= 1
            return None
        if not self._open[kind]:
            self.unclosed += 1
            return None
        depth = len(self._kinds) - 1
        while self._kinds[depth] != kind:
            depth -= 1
        self._unwind(depth + 1)
        self._kinds.pop()
        self._open[kind] -= 1
        return "".join(self._buffers.pop())

    def _unwind(self, depth: int) -> None:
        """Brackets above a depth never closed: hand their text to the one below."""
        while len(self._kinds) > depth:
            self._open[self._kinds.pop()] -= 1
            self.unclosed += 1
            inner = self._buffers.pop()
            self._buffers[-1].extend(inner)

    def _link(self, match: re.Match[str]) -> int:
        if match[1] is None:
            self._push("[[")
        else:
            self._buffers[-1].append(self._shown(match[1], match[2]))
        return match.end()

    def _close_link(self, match: re.Match[str]) -> int:
        inner = self._pop("[[")
        if inner is not None:
            target, bar, rest = inner.partition("|")
            # A target has no line break, and only captions span paragraphs: this is no link.
            if "\n" in target or ("\n\n" in rest and not self._is_hidden(target)):
                self.unclosed += 1
                self._buffers[-1].append(inner)
            else:
                label = rest.rpartition("|")[2] if bar else None
                self._buffers[-1].append(self._shown(target, label))
        return match.end()

    def _shown(self, target: str, label: str | None) -> str:
        if ":" in target:
            target = target.strip()
            if target.startswith(":"):
                target = target[1:]
            elif self._is_hidden(target):
                return DROPPED
        return label if label and label.strip() else target.strip().removeprefix("#")

    def _is_hidden(self, target: str) -> bool:
        """Files, categories and links to other languages show nothing where they stand."""
        prefix = target.partition(":")[0].strip().replace("_", " ")
        if prefix.lower() in self._hidden:
            return True
        if len(target) < _LONGEST_TITLE and _MEDIA_FILE.fullmatch(target):
            return True
        return bool(_LANGUAGE_PREFIX.fullmatch(prefix)) and prefix not in _OTHER_PREFIXES

    def _external(self, match: re.Match[str]) -> int:
        inside = _INSIDE_BRACKET.match(self._text, match.end())
        if inside is None or not self._text.startswith("]", inside.end()):
            self.unclosed += 1
            url = _URL.match(self._text, match.end())
            return url.end() if url else match.end()
        label = " ".join(inside[0].split()[1:])
        if "{" in label or "<" in label:
            machine = Brackets(Namespaces(self._hidden))
            label = machine.run(label)
            self.dropped += machine.dropped
            self.unclosed += machine.unclosed
        self._buffers[-1].append(label or DROPPED)
        return inside.end() + 1

    def _open_braces(self, match: re.Match[str]) -> int:
        self._push(match[0])
        return match.end()

    def _close_braces(self, match: re.Match[str]) -> int:
        if self._open["{{{"] and self._text.startswith("}", match.end()):
            innermost = next(kind for kind in reversed(self._kinds) if kind[:2] == "{{")
            if innermost == "{{{":
                default = (self._pop("{{{") or "").partition("|")[2]
                self._buffers[-1].append(default or DROPPED)
                return match.end() + 1
        inner = self._pop("{{")
        if inner is not None:
            self._buffers[-1].append(self._template(inner))
        return match.end()

    def _template(self, inner: str) -> str:
        name, _, body = inner.partition("|")
        name = name.replace(DROPPED, "").strip().replace("_", " ")
        shown = render(name.lower(), body)
        if shown is None:
            self.dropped[name.partition(":")[0].partition("\n")[0][:80].lower()] += 1
        return shown or DROPPED

    def _open_table(self, match: re.Match[str]) -> int:
        if self._at_line_start(match.start()):
            self._push("{|")
        else:
            self._buffers[-1].append(match[0])
        return match.end()

    def _close_table(self, match: re.Match[str]) -> int:
        if not self._at_line_start(match.start()):
            self._buffers[-1].append(match[0])
        elif self._pop("{|") is not None:
            self._buffers[-1].append("\n")
        return match.end()

    def _at_line_start(self, start: int) -> bool:
        before = self._text[max(0, start - 20) : start]
        line = before[before.rfind("\n") + 1 :]
        return not line.strip(" \t:*#;") and (start < 20 or "\n" in before)

    def _open_variant(self, match: re.Match[str]) -> int:
        buffer = self._buffers[-1]
        if buffer and buffer[-1].endswith("-"):
            buffer[-1] = buffer[-1][:-1]
        self._push("-{")
        return match.end()

    def _close_variant(self, match: re.Match[str]) -> int:
        if not self._open["-{"]:
            self._buffers[-1].append(match[0])
            return match.end()
        inner = self._pop("-{")
        if inner is not None:
            self._buffers[-1].append(_variant(inner))
        return match.end()

    def _tag(self, match: re.Match[str]) -> int:
        name, buffer = match[3].lower(), self._buffers[-1]
        if name == "table":
            if not match[0].startswith("</"):
                self._push("<table")
            elif self._pop("<table") is not None:
                self._buffers[-1].append("\n")
        elif name in _BLOCK_TAGS:
            buffer.append("\n")
        elif name in ("td", "th"):
            buffer.append(" ")
        elif name not in _INLINE_TAGS:
            buffer.append(match[0])
        return match.end()


def _variant(inner: str) -> str:
    """What `-{flags|zh-hans:…;zh-hant:…}-` shows: the first of the preferred scripts."""
    flags, bar, body = inner.partition("|")
    if not bar or not _VARIANT_FLAGS.fullmatch(flags):
        flags, body = "", inner
    if set(flags) & set("HTD-"):
        return DROPPED
    pairs = [part.partition(":") for part in body.split(";") if ":" in part]
    if "R" in flags or not pairs:
        return body
    by_script = {script.strip().lower(): text.strip() for script, _, text in pairs}
    for script in _SHOWN_VARIANTS:
        if script in by_script:
            return by_script[script]
    return next(iter(by_script.values()))
