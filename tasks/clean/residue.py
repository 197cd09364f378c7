"""Markup that is left in a text: what the audit looks for, and the benchmarks count."""

from __future__ import annotations

import re
from collections import Counter

from tasks.clean.marks import ALL

# One pass finds all: each way begins with a literal, so that the regex engine skips prose fast, and
# the empty group behind it tells which way it was.
_WAYS: dict[str, tuple[str, ...]] = {
    "templates": (r"\{\{", r"\}\}"),
    "tables": (r"\{\|", r"\|\}", r"\n[ ]*\|[-+}|]"),
    "links": (r"\[\[", r"\]\]"),
    "external_links": (r"\[(?:https?:|ftp:|mailto:)?//",),
    "comments": ("<!--", "-->"),
    "references": (r"</?(?i:ref|references)\b[^<>\n]*>",),
    "tags": (
        r"</?(?i:div|span|br|hr|p|sub|sup|small|big|center|table|td|tr|th|tbody|font|blockquote"
        r"|math|chem|nowiki|gallery|code|pre|tt|i|b|s|u|em|strong|del|ins|li|ul|ol|dl|dd|dt|cite"
        r"|abbr|ruby|rt|rp|noinclude|includeonly|onlyinclude|timeline|imagemap|syntaxhighlight"
        r"|source|poem|section|score|templatestyles|mapframe|maplink|hiero)\b[^<>\n]*>",
    ),
    "quotes": ("''",),
    "entities": (r"&(?:[a-zA-Z][a-zA-Z0-9]{1,8}|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});",),
    "headings": (r"\n[ ]*=[^=\n][^\n]*=[ ]*(?=\n)", r"\n[ ]*==+[^=\n]+==+[ ]*(?=\n)"),
    "list_marks": (r"\n[*#:;]",),
    "gaps": (r"\([ ]*[,;:]", r"（[ ]*[、，；：,;]", r"\([ ]*\)", r"（[ ]*）"),
    "categories": (r":(?<=\bCategory:)",),
    "images": (r"\|(?:thumb|left|right|frame|upright|\d{1,4}px)\b",),
    "magic_words": (r"__[A-Z]{3,30}__",),
    "attributes": (
        r'="(?:(?<=\bstyle=")|(?<=\bclass=")|(?<=\balign=")|(?<=span=")|(?<=color=")'
        r'|(?<=\bwidth="))',
    ),
    "variants": (r"-\{[^{}\n]{0,200}\}-",),
    "control": ALL,
}
_NAMES = [name for name, ways in _WAYS.items() for _ in ways]
_RESIDUE = re.compile("|".join(f"{way}()" for ways in _WAYS.values() for way in ways))


def residue(text: str) -> Counter[str]:
    """How often markup of each kind is left in a text.

    Code and formulas that an article shows may look like markup: the counts are an upper bound.

    Args:
        text: paragraphs, one a line.
    """
    matches = _RESIDUE.finditer(f"\n{text}\n")
    return Counter(_NAMES[(match.lastindex or 1) - 1] for match in matches)


def paragraphs_with_residue(text: str) -> list[str]:
    """The paragraphs in which markup of any kind is left."""
    return [line for line in text.split("\n") if _RESIDUE.search(f"\n{line}\n")]
