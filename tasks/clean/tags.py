"""HTML tags that articles use, by what they do to the text around them."""

from __future__ import annotations

# They end a line.
BLOCK_TAGS = {
    "br", "hr", "p", "div", "li", "ul", "ol", "dl", "dd", "dt", "blockquote", "center", "poem",
    "h1", "h2", "h3", "h4", "h5", "h6", "caption",
}  # fmt: skip
# They show what they hold.
INLINE_TAGS = {
    "abbr", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i",
    "ins", "kbd", "mark", "noinclude", "nobr", "nowiki", "onlyinclude", "q", "rb", "ref",
    "references", "rp", "ruby", "s", "samp", "small", "span", "strike", "strong", "sub",
    "sup", "time", "tt", "u", "var", "wbr", "math", "chem", "ce", "pre", "source", "rtc", "rbc",
    "syntaxhighlight", "languages", "translate", "tvar", "indicator", "img", "a", "tbody", "thead",
    "tfoot", "section", "gallery", "timeline", "score", "imagemap", "hiero", "graph", "mapframe",
    "maplink", "templatedata", "templatestyles", "inputbox", "categorytree", "includeonly",
    "phonos", "noindex", "col", "colgroup",
}  # fmt: skip
# What they stand for inside a table, and outside of one.
CELL_TAGS = {"tr": ("\n|-\n", "\n"), "td": ("\n|", " "), "th": ("\n|", " ")}
