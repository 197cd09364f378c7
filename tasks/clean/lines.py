"""The last step from markup to text, line by line: headings, lists, gaps of what was dropped."""

from __future__ import annotations

import html
import re
from functools import lru_cache

from tasks.clean.marks import BREAK, CAPTION, DROPPED, PIPE
from tasks.clean.names import SWITCHES
from tasks.clean.wiki import Ledger

# Of words in capital letters that are all ASCII, only those without a bar below are never names in
# programs; the others are told by name.
_MAGIC_WORD = re.compile(
    rf"__(?:[A-Z]{{3,30}}|(?=[A-Z_]{{0,60}}+[^\x00-\x7f])[^\W\da-z_](?:(?![a-z])[\w\u200c]){{1,60}}?"
    rf"|{'|'.join(SWITCHES)})__"
)
# An ampersand that was escaped itself stands for what it was: `&amp;nbsp;` is a space.
_ENTITY = re.compile(r"&(?:amp;)*+(#\d{1,7};|#[xX][0-9a-fA-F]{1,6};|[a-zA-Z][a-zA-Z0-9]{1,30};|)")
_INVISIBLE = {"\t": " ", "\xa0": " ", "\u200b": "", "\xad": "", "\u2060": ""}
# Most gaps follow a word or a full stop and need no closing.
_PLAIN_GAP = re.compile(r"\x01(?<=[^\s,;:、，；(（\x01]\x01)(?!\x01|[\s,;:、，；]*[)）])")
_TRACES = re.compile(r"\x01[\x01 ]*\x01")
_SEPARATORS = " ,;:、，；"
_CLOSING = tuple(" .,;:!?)]。，、；）\n")
_LIST_MARKS = frozenset("*#:;")
_TABLE_MARKS = frozenset(f"|{PIPE}")
# The quotes come first, so that the regex engine finds them fast.
_ELISION = re.compile(r"'''(?<=[A-Za-zÀ-ɏ]''')(?=[A-Za-zÀ-ɏ])")
# Longest first: four quotes are an apostrophe in bold, six one in bold italics.
_QUOTES = re.compile(r"''(?:'(?:'')?)?")
_SPACES = re.compile("  +")
_ANY_WORD = re.compile(r"\w")


def tidy(text: str, ledger: Ledger) -> str:
    """Take the marks off lines and quotes, and close the gaps that dropped markup left.

    Args:
        text: text with `DROPPED` wherever something inline was dropped.
        ledger: counts the lines of unclosed tables that are dropped.

    Returns:
        One paragraph, list item or heading a line, a heading only where its section has text.
    """
    # What is left of tables that never closed.
    text = text.replace(BREAK, "\n")
    if _ELISION.search(text):
        text = "\n".join(_elided(line) if "'''" in line else line for line in text.split("\n"))
    text = "".join(_QUOTES.split(text))
    if "__" in text:
        text = _MAGIC_WORD.sub("", text)
    text = decode(text)
    text = _SPACES.sub(" ", text)
    if DROPPED in text:
        text = _close_gaps(_PLAIN_GAP.sub("", text))
    return _kept_lines(text, ledger)


def decode(text: str) -> str:
    """Character entities, and once more what was escaped twice; invisible characters go."""
    text = _ENTITY.sub(_character, text)
    for character, shown in _INVISIBLE.items():
        text = text.replace(character, shown)
    return text


def _character(match: re.Match[str]) -> str:
    return _shown(match[0], match[1])


@lru_cache(maxsize=4096)
def _shown(source: str, name: str) -> str:
    if not name:
        return "&" if ";" in source else source
    shown = html.unescape(f"&{name}")
    # A name that is none stays; a stand-in must not come from the page.
    if len(shown) > 2:
        return f"&{name}"
    return shown if shown >= " " or shown in "\t\n" else ""


def _kept_lines(text: str, ledger: Ledger) -> str:
    kept: list[str] = []
    pending: list[tuple[int, str]] = []
    captioned = CAPTION in text
    for line in text.split("\n"):
        if not line:
            continue
        if line[0] in "*#:":
            line = line.lstrip("*#:; ")
        # The fast way of most lines: a paragraph or item that begins with a letter or digit.
        if not line[:1].isalnum():
            line = line.strip()
            if line.startswith("=") and line.endswith("=") and line.strip("= "):
                level = len(line) - len(line.lstrip("="))
                while pending and pending[-1][0] >= level:
                    pending.pop()
                pending.append((level, line.strip("= ")))
                continue
            line = _without_mark(line, ledger)
            if not _ANY_WORD.search(line):
                continue
        if pending:
            for _, title in pending:
                kept += _behind(title) if CAPTION in title else (title,)
            pending.clear()
        kept += _behind(line) if captioned and CAPTION in line else (line.rstrip(),)
    return "\n".join(kept)


def _without_mark(line: str, ledger: Ledger) -> str:
    """A line without what marks it as an item; empty where it belongs to an unclosed table."""
    first = line[:1]
    if first in _LIST_MARKS:
        if first == ";":
            # `; term : definition` is two items on a line.
            line = line.replace(" : ", ": ", 1)
        line = line.lstrip("*#:; ")
        first = line[:1]
    if first in _TABLE_MARKS:
        ledger.table_rows += 1
        ledger.drop("tables", line)
        return ""
    return line.lstrip("-") if line.startswith("----") else line


def _behind(line: str) -> list[str]:
    """Captions go behind the paragraph in which their image stands."""
    parts = line.split(CAPTION)
    own = _SPACES.sub(" ", "".join(parts[::2])).strip()
    return [own, *parts[1::2]] if own else parts[1::2]


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
