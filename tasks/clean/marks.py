"""Stand-ins for what must not be taken for markup: control characters, which XML cannot hold."""

from __future__ import annotations

# Something inline was dropped here: the gap is closed in the end.
DROPPED = "\x01"
# Characters that a rendered template shows: `wikitext.clean` puts them in the end.
PIPE, APOSTROPHE = "\x02", "\x04"
# Put round the number of a piece set aside.
ASIDE = "\x03"
# Stands before and after the caption of an image, which moves behind its paragraph.
CAPTION = "\x05"
# A line break inside a cell, which is none of the table's lines.
BREAK = "\x06"

ALL = (DROPPED, PIPE, ASIDE, APOSTROPHE, CAPTION, BREAK)
