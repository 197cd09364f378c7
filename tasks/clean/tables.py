"""Wiki tables as text: a line a row, its cells divided by a bar."""

from __future__ import annotations

import re

from tasks.clean.marks import BREAK, DROPPED, PIPE

# Attributes before a cell's own bar, as in `| style="x" | text`.
_ATTRIBUTES = re.compile(
    r"""\s*+(?:[\w:-]++\s*+(?:=\s*+(?:"[^"\n]*+"|'[^'\n]*+'|[^\s"'|]++))?+\s*+)*+"""
)
# Attributes that a cell begins with though there is no bar, or a second one.
_KNOWN = re.compile(
    r"""\s*+[;!]?+(?:\s*+(?:colspan|rowspan|style|class|v?align|bgcolor|width|height|scope|data-[\w-]+)"""
    r"""\s*+=\s*+(?:"[^"\n]*+"|'[^'\n]*+'|[^\s"'|]++))++\s*+[|!]?+""",
    re.I,
)
_BLANK = f" \t\n{DROPPED}{BREAK}"
_ITEM = f" *#:;{DROPPED}"
_DIVIDER = f" {PIPE} "


def rows(inner: str) -> str:
    """The rows of a table as lines.

    Args:
        inner: what stands between `{|` and `|}`, links and templates in it already shown.
    """
    lines = inner.split("\n")
    found: list[list[list[str]]] = [[]]
    # What follows `{|` on its line are attributes.
    for line in lines[1:]:
        stripped = line.lstrip(" \t:")
        mark = stripped[:2]
        if mark == "|-":
            found.append([])
        elif mark == "|+":
            found += [_cells([stripped[2:]]), []]
        elif mark[:1] == "|":
            found[-1] += _cells(stripped[1:].split("||"))
        elif mark[:1] == "!":
            found[-1] += _cells(stripped[1:].replace("!!", "||").split("||"))
        elif found[-1]:
            found[-1][-1].append(line)
    return "\n".join(filter(None, map(_row, found)))


def _cells(sources: list[str]) -> list[list[str]]:
    """Cells as lists of their lines, to which more may come."""
    return [[_without_attributes(source)] for source in sources]


def _without_attributes(cell: str) -> str:
    if "|" in cell:
        before, _, rest = cell.partition("|")
        cell = rest if _ATTRIBUTES.fullmatch(before) else cell
    start = 0
    while cell.find("=", start) >= 0 and (known := _KNOWN.match(cell, start)):
        start = known.end()
    return cell[start:]


def _row(row: list[list[str]]) -> str:
    cells = [stripped for lines in row if (stripped := "\n".join(lines).strip(_BLANK))]
    # A cell a row, or tables in cells, only lay out a page: what they hold are paragraphs.
    if len(cells) == 1 or any(PIPE in cell and "\n" in cell for cell in cells):
        return "\n".join(cells).replace(BREAK, "\n")
    return _DIVIDER.join(map(_on_one_line, cells))


def _on_one_line(cell: str) -> str:
    if "\n" in cell:
        lines = cell.split("\n")
        # A list in a cell is an enumeration.
        joint = ", " if any(line[:1] in ("*", "#") for line in lines[1:]) else " "
        items = (line.lstrip(_ITEM).strip(_BLANK) for line in lines)
        cell = joint.join(filter(None, items))
    return cell.replace(BREAK, " ")
