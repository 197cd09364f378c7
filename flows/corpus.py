"""The report of a cleaned corpus as the page shows it: rows of tables, and two pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows import pictures

Document = dict[str, Any]

_PAGES = {
    "articles": "kept",
    "redirects": "redirects to another page",
    "other_namespaces": "outside the article namespace",
    "other_models": "no wikitext",
    "without_text": "no text in the dump",
    "empty": "nothing left after cleaning",
    "contaminated": "holds a piece of an evaluation set",
    "duplicate": "repeats an earlier document",
    "near_duplicate": "nearly repeats an earlier document",
    "timed_out": "set aside: took longer than a page may",
    "set_aside": "set aside: could not be read or cleaned",
}
_LANGUAGES = 12


def section(report: Document) -> Document:
    """What the page shows of a corpus, as JSON values.

    Args:
        report: the `report.json` of a clean output.

    Returns:
        `pages` (where every page went), `constructs` (characters kept and lost), and the report's
        own tables.
    """
    characters = report["characters"]
    # The report's order: what lost the most comes first.
    constructs = {**characters["lost"], **characters["kept"]}
    return {
        **report,
        "pages": _pages(report),
        "constructs": [
            {
                "construct": name,
                "kept": characters["kept"].get(name, 0),
                "lost": characters["lost"].get(name, 0),
            }
            for name in constructs
        ],
    }


def drawn(cleaned: Mapping[str, Any]) -> list[Document]:
    """Pictures of lengths and languages, each with a title and a URL that holds it."""
    lengths = {int(length): count for length, count in cleaned["lengths"].items()}
    charts = {}
    if lengths:
        every = [1 << power for power in range(_power(min(lengths)), _power(max(lengths)) + 1)]
        charts["Lengths"] = pictures.bars(
            "Lengths",
            "documents by characters",
            [(f"≥{_short(n)}", lengths.get(n, 0)) for n in every],
        )
    languages = list(cleaned["languages"].items())
    if len(languages) > 1:
        rest = sum(count for _, count in languages[_LANGUAGES:])
        shown = languages[:_LANGUAGES] + ([("others", rest)] if rest else [])
        charts["Languages"] = pictures.bars("Languages", "documents", shown)
    return [{"title": title, "url": pictures.data_url(svg)} for title, svg in charts.items()]


def _pages(report: Document) -> list[Document]:
    """Where every page of the dump went, with its share; filters that dropped none are left out."""
    characters = {**report["characters"]["dropped"], "articles": report["characters"]["out"]}
    return [
        {
            "kind": _PAGES.get(name, f"filtered: {name.replace('_', ' ')}"),
            "pages": count,
            "share": count / report["pages"],
            "characters": characters.get(name, 0),
        }
        for name, count in report["whereabouts"].items()
        if count or name in _PAGES
    ]


def _power(number: int) -> int:
    return number.bit_length() - 1


def _short(number: int) -> str:
    return f"{number >> 10}k" if number >= 1024 else str(number)
