"""The stack machine over wiki markup's brackets: templates, tables, links, variants and tags.

Every open bracket collects what it shows in its own buffer. A bracket that closes hands its text
to the one around it, or drops it; a bracket that never closes hands over what it collected, so
unbalanced markup costs its own brackets and never the rest of the page. The work is linear in the
page's length, whatever the page holds, but for what expanded templates add to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tasks.clean.braces import BracePairs
from tasks.clean.calls import ODD_CALL, Call, counted, superscript
from tasks.clean.links import internal, is_furniture, variant
from tasks.clean.marks import BREAK, DROPPED, PIPE
from tasks.clean.tables import rows
from tasks.clean.tags import BLOCK_TAGS, CELL_TAGS, INLINE_TAGS
from tasks.clean.wiki import Deadline, Ledger, Wiki

# Nesting beyond this is broken or hostile; it bounds the cost of joining buffers level by level.
_MAX_DEPTH = 100

_NONE_OPEN = dict.fromkeys(("[[", "{{", "{{{", "{|", "<table", "-{"), 0)

# Each alternative begins with a literal, so that the regex engine skips plain text fast.
_TOKEN = re.compile(
    r"\[\[(?:([^\[\]{}|<>\n]*+\|?+[^\[\]{}<>\n]*+)\]\])?"
    r"|\]\]"
    r"|\{\{\{(?![{!])"
    r"|\{\{(?:([^\[\]{}|<>]*+)(?:\|([^\[\]{}<>]*+))?+\}\})?"
    r"|\{\||\{(?<=-\{)"
    r"|\}\}|\}-"
    r"|\|\}(?!\})"
    r"|\[(?:(?i:https?|ftps?|irc|news|mailto|git|svn):|//)"
    r"|<(?:sup>\s*+([-+−–]?\d+)\s*+</sup>|rp>[^<]*+</rp>|/?([a-zA-Z][a-zA-Z0-9]*)\b[^<>]*>)"
)
_HEAD = re.compile(r"[^\[\]{}|<>]*+")
_INSIDE_BRACKET = re.compile(r"[^\[\]\n]*+")
_URL = re.compile(r"[^\s\[\]<>\"|{}]*+")


Expand = Callable[[str, str], str | None]


class Brackets:
    """Reads one page, or a piece of it.

    Args:
        wiki: the wiki.
        ledger: takes the counts.
        deadline: the page's.
        expand: what a call shows that is not in the wiki's table of templates, from its name
            and its whole markup; None where it shows nothing.
    """

    def __init__(self, wiki: Wiki, ledger: Ledger, deadline: Deadline, expand: Expand) -> None:
        self._wiki, self._ledger, self._deadline, self._expand = wiki, ledger, deadline, expand
        self._find = wiki.templates.find
        self._text = ""
        self._kinds: list[str] = []
        self._buffers: list[list[str]] = [[]]
        self._open = dict(_NONE_OPEN)
        self._too_deep = dict(_NONE_OPEN)
        self._pairs = BracePairs("")

    def run(self, text: str) -> str:
        """The text that a page shows, with stand-ins, blank lines and line marks still in it."""
        self._text, self._pairs, pos = text, BracePairs(text), 0
        buffers, handlers = self._buffers, self._handlers()
        finished = False
        while not finished:
            self._deadline.check()
            finished = True
            for match in _TOKEN.finditer(text, pos):
                start, end = match.span()
                if start > pos:
                    buffers[-1].append(text[pos:start])
                handler = handlers.get(text[start : start + 2]) or self._other(match)
                pos = handler(match)
                # A handler may read beyond its token: the next one is then sought from there.
                if pos != end:
                    finished = False
                    break
        buffers[-1].append(text[pos:])
        self._unwind(0)
        return "".join(buffers[0])

    def _handlers(self) -> dict[str, Callable[[re.Match[str]], int]]:
        """By the first two characters, where these tell."""
        return {
            "[[": self._link, "]]": self._close_link,
            "{{": self._open_braces, "}}": self._close_braces,
            "{|": self._open_table, "|}": self._close_table, "}-": self._close_variant,
        }  # fmt: skip

    def _other(self, match: re.Match[str]) -> Callable[[re.Match[str]], int]:
        if match[0][0] == "[":
            return self._external
        return self._open_variant if match[0] == "{" else self._tag

    def _push(self, kind: str) -> None:
        if len(self._kinds) >= _MAX_DEPTH:
            self._too_deep[kind] += 1
            self._ledger.unclosed += 1
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
            self._ledger.unclosed += 1
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
            self._ledger.unclosed += 1
            inner = self._buffers.pop()
            self._buffers[-1].extend(inner)

    def _link(self, match: re.Match[str]) -> int:
        if match[1] is None:
            self._push("[[")
        else:
            self._buffers[-1].append(internal(match[1], self._wiki, self._ledger))
        return match.end()

    def _close_link(self, match: re.Match[str]) -> int:
        inner = self._pop("[[")
        if inner is not None:
            target, _, rest = inner.partition("|")
            # A target has no line break, and only captions span paragraphs: this is no link.
            if "\n" in target or ("\n\n" in rest and not is_furniture(target, self._wiki)):
                self._ledger.unclosed += 1
                self._buffers[-1].append(inner)
            else:
                self._buffers[-1].append(internal(inner, self._wiki, self._ledger))
        return match.end()

    def _external(self, match: re.Match[str]) -> int:
        inside = _INSIDE_BRACKET.match(self._text, match.end())
        if inside is None or not self._text.startswith("]", inside.end()):
            self._ledger.unclosed += 1
            url = _URL.match(self._text, match.end())
            return url.end() if url else match.end()
        label = " ".join(inside[0].split()[1:])
        if "{" in label or "<" in label:
            label = Brackets(self._wiki, self._ledger, self._deadline, self._expand).run(label)
        self._buffers[-1].append(label or DROPPED)
        return inside.end() + 1

    def _open_braces(self, match: re.Match[str]) -> int:
        if match[2] is not None:
            self._buffers[-1].append(self._shown(match[2], match[3] or "", match[0]))
            return match.end()
        if match[0] == "{{":
            head = _HEAD.match(self._text, match.end())
            name = head[0] if head else ""
            computed = head is None or not self._text.startswith(("|", "}}"), head.end())
            # Arguments of what is dropped or expanded are not read here.
            if (not computed or ":" in name) and self._find(name) is None:
                end = self._pairs.end_of(match.start())
                if end is not None:
                    source = self._text[match.start() : end]
                    self._buffers[-1].append(self._expanded(name, source))
                    return end
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
            name, _, body = inner.partition("|")
            name = name.replace(DROPPED, "")
            self._buffers[-1].append(self._shown(name, body, f"{{{{{inner}}}}}"))
        return match.end()

    def _shown(self, name: str, body: str, source: str) -> str:
        """What a template shows whose arguments are shown already."""
        renderer = self._find(name)
        if renderer is None:
            return self._expanded(name, source)
        try:
            shown = renderer(Call.of(body, self._wiki.today, self._wiki.language))
        except ODD_CALL:
            self._ledger.drop_template(counted(name), source)
            return DROPPED
        self._ledger.keep("templates", source, shown, name)
        if "\n" in shown and self._open["{|"]:
            shown = shown.replace("\n", BREAK)
        return shown or DROPPED

    def _expanded(self, name: str, source: str) -> str:
        shown = self._expand(name, source)
        if not shown:
            return DROPPED
        self._ledger.keep("templates", source, shown, name)
        # What stands in another template's argument must not divide it.
        return shown.replace("|", PIPE) if self._open["{{"] else shown

    def _open_table(self, match: re.Match[str]) -> int:
        if self._at_line_start(match.start()):
            self._push("{|")
        else:
            self._buffers[-1].append(match[0])
        return match.end()

    def _close_table(self, match: re.Match[str]) -> int:
        if not self._at_line_start(match.start()):
            self._buffers[-1].append(match[0])
        else:
            self._append_table(self._pop("{|"))
        return match.end()

    def _append_table(self, inner: str | None) -> None:
        if inner is None:
            return
        shown = rows(inner) if self._wiki.tables == "text" else ""
        if shown:
            self._ledger.keep("tables", inner, shown)
        else:
            self._ledger.drop("tables", inner)
        self._buffers[-1].append(f"\n{shown}\n")

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
            shown = variant(inner, self._wiki.language)
            self._ledger.keep("variants", inner, shown)
            self._buffers[-1].append(shown)
        return match.end()

    def _tag(self, match: re.Match[str]) -> int:
        buffer, closes = self._buffers[-1], match[0][1] == "/"
        name = (match[5] or "").lower()
        if not name:
            # A power, or the brackets round a reading, which it gets below anyway.
            buffer.append(superscript(match[4] or ""))
        elif name == "table":
            if not closes:
                self._push("<table")
            else:
                self._append_table(self._pop("<table"))
        elif name in BLOCK_TAGS:
            buffer.append(BREAK if self._open["{|"] else "\n")
        elif name in CELL_TAGS:
            inside, outside = CELL_TAGS[name]
            if not self._open["<table"]:
                buffer.append(outside)
            elif not closes:
                buffer.append(inside)
        elif name == "rt":
            # A reading stands above its characters; `rp`, which would bracket it, is optional.
            buffer.append("）" if closes else "（")
        elif name not in INLINE_TAGS:
            buffer.append(match[0])
        return match.end()
