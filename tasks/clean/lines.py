"""The last step from markup to text, line by line: headings, lists, gaps of what was dropped."""

from __future__ import annotations

import re

from tasks.clean.templates import PIPE

DROPPED = "\x01"

_MAGIC_WORD = re.compile(r"__(?:[A-Z]{3,30}|[^\W\d_a-zA-Z]{2,30})__")
_SPACES = re.compile(r"[ \t\xa0]{2,}")
_TRACES = re.compile(r"\x01[\x01 \t]*\x01")
_SEPARATORS = " \t,;:、，；"
_CLOSING = tuple(" .,;:!?)]。，、；）\n")
_LIST_MARKS = frozenset("*#:;")
_TABLE_MARKS = frozenset(f"|{PIPE}")
# The quotes come first, so that the regex engine finds them fast.
_ELISION = re.compile(r"'''(?<=\w''')(?=\w)")
_ANY_WORD = re.compile(r"\w")


def tidy(text: str) -> tuple[str, int]:
    """Take the marks off lines and quotes, and close the gaps that dropped markup left.

    Args:
        text: text with `DROPPED` wherever something inline was dropped.

    Returns:
        One paragraph, list item or heading a line, a heading only where its section has text;
        and how many lines of unclosed tables were dropped.
    """
    if _ELISION.search(text):
        text = "\n".join(map(_elided, text.split("\n")))
    # Longest first: four quotes are an apostrophe in bold, six one in bold italics.
    text = text.replace("'''''", "").replace("'''", "").replace("''", "")
    if "__" in text:
        text = _MAGIC_WORD.sub("", text)
    text = _SPACES.sub(" ", text)
    if DROPPED in text:
        text = _close_gaps(text)
    kept: list[str] = []
    pending: list[tuple[int, str]] = []
    table_rows = 0
    for line in text.split("\n"):
        line = line.strip()
        if line.startswith("=") and line.endswith("=") and line.strip("= "):
            level = len(line) - len(line.lstrip("="))
            while pending and pending[-1][0] >= level:
                pending.pop()
            pending.append((level, line.strip("= ")))
            continue
        if line[:1] in _LIST_MARKS:
            line = line.lstrip("*#:; \t")
        if line[:1] in _TABLE_MARKS:
            table_rows += 1
            continue
        if line.startswith("----"):
            line = line.lstrip("-")
        if _ANY_WORD.search(line):
            kept += [title for _, title in pending]
            pending.clear()
            kept.append(line)
    return "\n".join(kept), table_rows


def _elided(line: str) -> str:
    """`l'''Opéra''` is `l'` and italics: MediaWiki's rule where no kind of quotes is paired."""
    rest = line.replace("'''''", "")
    bold = rest.count("'''")
    if bold % 2 and (rest.count("''") - bold) % 2:
        return _ELISION.sub("'", line, count=1)
    return line


def _close_gaps(text: str) -> str:
    """`(; 1 May 1900)` to `(1 May 1900)`, `word , word` to `word, word`; `f()` stays."""
    first, *others = _TRACES.sub(DROPPED, text).split(DROPPED)
    pieces = [first]
    for right in others:
        left = pieces[-1]
        before, after = left.rstrip(_SEPARATORS), right.lstrip(_SEPARATORS)
        if before.endswith(("(", "（")):
            empty = after.startswith((")", "）"))
            pieces[-1] = before[:-1].rstrip(" ") if empty else before
            right = after[1:] if empty else after
        elif after.startswith((")", "）")):
            pieces[-1], right = before, after
        elif left.endswith(" ") and right.startswith(_CLOSING):
            pieces[-1] = left[:-1]
        # What stands left of the next gap is then never empty.
        if right:
            pieces.append(right)
    return "".join(pieces)
