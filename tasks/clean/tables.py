"""Wiki tables as text: a line a row, its cells divided by a bar."""

from __future__ import annotations

import re

from tasks.clean.marks import DROPPED, PIPE

# Attributes before a cell's own bar, as in `| style="x" | text`.
_ATTRIBUTES = re.compile(
    r"""\s*+(?:[\w:-]++\s*+(?:=\s*+(?:"[^"\n]*+"|'[^'\n]*+'|[^\s"'|]++))?+\s*+)*+"""
)
_CELLS = re.compile(r"\|\||!!")
_DATA_CELLS = re.compile(r"\|\|")
_DIVIDER = f" {PIPE} "


def rows(inner: str) -> str:
    """The rows of a table as lines.

    Args:
        inner: what stands between `{|` and `|}`, links and templates in it already shown.
    """
    lines = inner.replace(DROPPED, "").split("\n")
    found: list[list[str]] = [[]]
    # What follows `{|` on its line are attributes.
    for line in lines[1:]:
        stripped = line.lstrip(" \t:")
        if stripped.startswith("|-"):
            found.append([])
        elif stripped.startswith("|+"):
            found += [[_without_attributes(stripped[2:])], []]
        elif stripped.startswith(("|", "!")):
            divider = _DATA_CELLS if stripped[0] == "|" else _CELLS
            cells = divider.split(stripped[1:])
            found[-1] += [_without_attributes(cell) if "|" in cell else cell for cell in cells]
        elif found[-1]:
            found[-1][-1] += "\n" + line
    return "\n".join(filter(None, map(_row, found)))


def _without_attributes(cell: str) -> str:
    before, bar, rest = cell.partition("|")
    return rest if bar and _ATTRIBUTES.fullmatch(before) else cell


def _row(cells: list[str]) -> str:
    cells = [stripped for cell in cells if (stripped := cell.strip())]
    # A table of one cell a row only lays out a page: what it holds are paragraphs.
    if len(cells) == 1:
        return cells[0]
    row = _DIVIDER.join(cells)
    return " ".join(row.split("\n")) if "\n" in row else row
