"""`megaline clean-page`: an article's markup and text side by side, and what each rule did."""

from __future__ import annotations

import re
import shutil
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows import console
from flows.arguments import Json, Overrides
from tasks.core import sources
from tasks.core.progress import Progress

Document = dict[str, Any]

_TEMPLATE = "clean-page.html.jinja"
_NARROWEST = 60
_WORDS = 6
# How far ahead in the markup the source of a line of text is looked for.
_WINDOW = 300
_STEPS = 40
# Controls, and what turns the writing direction: it could show a line that is not there.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# Scripts without spaces: each character is a word.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")


def clean_page(
    dump: str,
    title: str,
    /,
    *overrides: Overrides,
    recipe: Path | None = None,
    html: Path | None = None,
    json: Json = False,
) -> int:
    """Show an article's markup and text side by side, and what each rule did to it.

    The page goes through markup, rules, filters and evaluation sets as in a run; only whether it
    repeats another document is not asked. Where templates are taken from the dump, that is read
    to its end; clean.templates=table stops at the page.

    For example:

    megaline clean-page tests/data/wiki/english.xml "Stone Wall"

    megaline clean-page dump.xml.bz2 Alaska clean.tables=drop clean.min_words=50 --html alaska.html

    Args:
        dump: a MediaWiki dump: a path, file:///path, or package://PACKAGE/inner/path
        title: the article's title, as the dump writes it
        recipe: a recipe whose clean table says how; its defaults without it
        html: write one self-contained HTML page, too
    """
    from flows import page

    found = examined(dump, title, recipe, overrides)
    if html:
        page.write(html_page(found), html, "--html")
    console.say(found, lines(found), json)
    return 0


def examined(dump: str, title: str, recipe: Path | None, overrides: tuple[str, ...]) -> Document:
    """One page of a dump, cleaned as a recipe says; see `tasks.clean.examination.examine`.

    Raises:
        ConfigError: the recipe is wrong.
        InputError: there is no such dump, or no such page in it.
    """
    from flows.config import load, overlaid
    from tasks.clean.examination import examine

    if recipe:
        config = load(recipe, overrides)
    else:
        # A page needs neither of these.
        stages = {"ingest": {"source": dump}, "model": {"source": "none"}}
        config = overlaid(stages, overrides, "the command line")
    path = sources.locate(dump)
    progress = Progress("clean-page")
    total = path.stat().st_size
    try:
        return examine(
            path, title, config.clean, lambda done: progress(done, total, unit="bytes", note=title)
        )
    finally:
        progress.close()


def rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Markup beside the text that came of it.

    A line of text stands beside the next line of markup that holds its first words; what stands
    between the two made no line of its own.
    """
    markup = [line for line in found["wikitext"].split("\n") if line.strip()]
    words = [set(_WORD.findall(line)) for line in markup]
    paired: list[tuple[str, str]] = []
    start = 0
    for line in filter(None, found["text"].split("\n")):
        first = set(_WORD.findall(line)[:_WORDS])
        places = range(start, min(start + _WINDOW, len(markup)))
        place = next((number for number in places if first <= words[number]), None)
        if place is None:
            paired.append(("", line))
            continue
        paired += [(skipped, "") for skipped in markup[start:place]]
        paired.append((markup[place], line))
        start = place + 1
    return paired + [(skipped, "") for skipped in markup[start:]]


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The page as text for a terminal, which a stranger's dump must not steer."""
    return (_CONTROL.sub("�", line) for line in _lines(found))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    width = max(shutil.get_terminal_size((120, 40)).columns, _NARROWEST)
    yield f"{found['title']}  {found['url']}".rstrip()
    for title, told in summary(found).items():
        yield f"{title}: {told}"
    yield ""
    half = (width - 3) // 2
    for markup, text in [("WIKITEXT", "TEXT"), *rows(found)]:
        left, right = _wrapped(markup, half), _wrapped(text, half)
        for number in range(max(len(left), len(right))):
            one = left[number] if number < len(left) else ""
            two = right[number] if number < len(right) else ""
            yield f"{one}{' ' * (half - _width(one))} | {two}".rstrip()
    yield ""
    more = len(found["steps"]) - _STEPS
    yield "what each rule did" + (f" (--json shows {more} steps more)" if more > 0 else "")
    for step in found["steps"][:_STEPS]:
        before, after = (_line(step[key], half - 14) for key in ("before", "after"))
        yield f"  {step['rule']:<24} {before}  ->  {after or '(nothing)'}"


def summary(found: Mapping[str, Any]) -> dict[str, str]:
    """What the rules did together, in a line each; what did nothing is left out."""
    constructs = found["constructs"]
    rules = {rule: f"{did['times']} ({did['sample']!r})" for rule, did in found["rules"].items()}
    told: dict[str, dict[str, Any]] = {
        "characters kept": constructs["kept"],
        "characters lost": constructs["lost"],
        "templates dropped": found["templates"],
        "rules": rules,
        "markup left": found["residue"],
        "evaluation sets": {hit["name"]: f"item {hit['item']}" for hit in found["hits"]},
    }
    return {
        "outcome": outcome(found),
        **{
            title: ", ".join(f"{name} {value}" for name, value in values.items())
            for title, values in told.items()
            if values
        },
    }


def outcome(found: Mapping[str, Any]) -> str:
    """What becomes of the page, in words."""
    verdict = found["verdict"]
    said = str(found["outcome"]).replace("_", " ")
    if found["outcome"] == "kept" or verdict is None:
        return said
    note = f" ({verdict['note']})" if verdict["note"] else ""
    return f"dropped: {said}: {verdict['value']:.6g}, the limit is {verdict['limit']:.6g}{note}"


def html_page(found: Mapping[str, Any]) -> str:
    """The page as one self-contained HTML file."""
    from flows import page

    return page.render(_TEMPLATE, found, rows=rows(found), summary=summary(found))


def _wrapped(text: str, columns: int) -> list[str]:
    """A text in lines of a width; ideographs are two columns wide."""
    wide = _width(text) > len(text)
    return textwrap.wrap(text, columns // 2 if wide else columns)


def _width(text: str) -> int:
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)


def _line(text: str, longest: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
