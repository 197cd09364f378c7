"""Markup that is left in a text: what the audit looks for, and the benchmarks count."""

from __future__ import annotations

import re
from collections import Counter

# In one pass; each pattern begins with a character that prose seldom has, which keeps it fast.
_PATTERNS = {
    "templates": r"\{\{|\}\}",
    "tables": r"\{\||\|\}|\n[ ]*\|[-+}|]",
    "links": r"\[\[|\]\]",
    "external_links": r"\[(?:https?:|ftp:|mailto:)?//",
    "comments": r"<!--|-->",
    "references": r"</?(?i:ref|references)\b[^<>\n]*>",
    "tags": r"</?(?i:div|span|br|hr|p|sub|sup|small|big|center|table|td|tr|th|tbody|font|blockquote"
    r"|math|chem|nowiki|gallery|code|pre|tt|i|b|s|u|em|strong|del|ins|li|ul|ol|dl|dd|dt|cite|abbr"
    r"|ruby|rt|rp|noinclude|includeonly|onlyinclude|timeline|imagemap|syntaxhighlight|source|poem"
    r"|section|score|templatestyles|mapframe|maplink|hiero)\b[^<>\n]*>",
    "quotes": r"''",
    "entities": r"&(?:[a-zA-Z][a-zA-Z0-9]{1,8}|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});",
    "headings": r"\n[ ]*=[^=\n][^\n]*=[ ]*(?=\n)|\n[ ]*==+[^=\n]+==+[ ]*(?=\n)",
    "list_marks": r"\n[*#:;]",
    "gaps": r"\([ ]*[,;:]|（[ ]*[、，；：,;]|\([ ]*\)|（[ ]*）",
    "categories": r":(?<=\bCategory:)",
    "images": r"\|(?:thumb|left|right|frame|upright|\d{1,4}px)\b",
    "magic_words": r"__[A-Z]{3,30}__",
    "attributes": r'="(?:(?<=\bstyle=")|(?<=\bclass=")|(?<=\balign=")|(?<=span=")|(?<=color=")'
    r'|(?<=\bwidth="))',
    "variants": r"-\{[^{}\n]{0,200}\}-",
    "control": "[\x01-\x08]",
}
_RESIDUE = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _PATTERNS.items()))


def residue(text: str) -> Counter[str]:
    """How often markup of each kind is left in a text.

    Code and formulas that an article shows may look like markup: the counts are an upper bound.

    Args:
        text: paragraphs, one a line.
    """
    return Counter(match.lastgroup or "" for match in _RESIDUE.finditer(f"\n{text}\n"))


def paragraphs_with_residue(text: str) -> list[str]:
    """The paragraphs in which markup of any kind is left."""
    return [line for line in text.split("\n") if _RESIDUE.search(f"\n{line}\n")]
