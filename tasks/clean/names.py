"""What MediaWiki calls namespaces, redirects and options of images, in all of its languages.

A dump's siteinfo holds the wiki's own name of each namespace, and whether the first letter of a
title counts. It does not say which other names its pages may use for them (`Image:`, `档案:`,
`Bild:`), which word makes a page a redirect, which words are options of images, nor which prefixes
lead to other wikis. The first three are in `names.txt`, from MediaWiki's own messages; prefixes of
other languages are told by their shape (see `links.py`). Of parser functions those with a `#` are
known by their names in every language, the others by their English ones, which work everywhere.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

# Numbers and English names of MediaWiki's own namespaces, which every wiki understands.
CANONICAL = (
    (-2, "Media"), (-1, "Special"), (1, "Talk"), (2, "User"), (3, "User talk"), (4, "Project"),
    (5, "Project talk"), (6, "File"), (7, "File talk"), (8, "MediaWiki"), (9, "MediaWiki talk"),
    (10, "Template"), (11, "Template talk"), (12, "Help"), (13, "Help talk"), (14, "Category"),
    (15, "Category talk"), (828, "Module"), (829, "Module talk"),
)  # fmt: skip
_REDIRECT = re.compile(r"\s*+[#＃]([^\[\]\n:：]{1,40}?)\s*+[:：]?\s*+\[\[")
_SUBSTITUTION = re.compile(r"(?i:safesubst|subst|msgnw|msg|raw)\s*+:\s*+")


def _read() -> dict[str, frozenset[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    table = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    for line in table.splitlines():
        if not line.startswith("# "):
            kind, _, names = line.partition(": ")
            found[kind].update(names.split(", "))
    return {kind: frozenset(names) for kind, names in found.items()}


_NAMES = _read()
FILES = _NAMES["files"]
CATEGORIES = _NAMES["categories"]
TEMPLATES = _NAMES["templates"]
# With these options the caption of an image is shown below it; the others say how it lies.
FRAMES = _NAMES["frames"]
OPTIONS = _NAMES["options"] | FRAMES
# What follows the number of an image's width.
PIXELS = _NAMES["pixels"]
# Words between double underscores that hold one themselves and have no letter beyond ASCII.
SWITCHES = _NAMES["switches"]
# By their names in other languages the English ones of parser functions: `#если` is `#if`.
FUNCTIONS = {
    name: english for english, names in _NAMES.items() if english[0] == "#" for name in names
}
# What marks the last case of a `#switch`.
DEFAULTS = _NAMES["#default"] | {"#default"}


def is_redirect(text: str) -> bool:
    """Whether a page's wikitext leads to another page, as `#REDIRECT [[Title]]` does."""
    match = _REDIRECT.match(text)
    return match is not None and match[1].replace("_", " ").casefold() in _NAMES["redirects"]


def template_name(name: str) -> str:
    """The name in a template's call without the prefixes that change nothing of what it shows."""
    name = _SUBSTITUTION.sub("", name.strip(), count=1)
    prefix, colon, rest = name.partition(":")
    if colon and rest and prefix.strip().replace("_", " ").lower() in TEMPLATES:
        return rest.lstrip()
    return name
