"""One page of a dump under the magnifying glass: its markup, its text, and what each rule did."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tasks.clean.mediawiki import Page, Site, read_page, title_of
from tasks.clean.origins import SourceFile, is_read_first
from tasks.clean.pages import Cleaner, Document, Options
from tasks.clean.residue import residue
from tasks.clean.rules import prepare
from tasks.core.errors import InputError, PipelineError

_AT_A_TIME = 10_000
_NEAREST = 3


def examine(
    path: Path, title: str, options: Options, progress: Callable[[int], None]
) -> dict[str, Any]:
    """Clean one page, and tell all that was done to it.

    Args:
        path: the dump. It is read once: up to the page, or where templates are taken from it, to
            its end.
        title: the page's; underscores are spaces.
        options: how to clean.
        progress: called with the bytes of the dump that have been read.

    Returns:
        `title`, `id`, `revision`, `url`, `language`; `outcome` (`kept`, or why it is not) and
        `verdict` (what a filter measured); `wikitext` and `text`; `constructs` (characters `kept`
        and `lost`), `templates` (dropped, by name), `rules`, `hits` (of evaluation sets),
        `residue`, and `steps`, which tell what each rule did in order.

    Raises:
        InputError: there is no such page, or it cannot be read or cleaned.
        PageTimeout: it takes longer than a page may.
    """
    with TemporaryDirectory() as folder:
        dump = SourceFile(path, "dump", options, Path(folder) / "templates", "keep", progress)
        source = _found(dump, path, title, to_the_end=is_read_first("dump", options))
        origin = dump.origin()
        prepare(options, origin.site.language)
        found = _document(_read(source, path, origin.site), Cleaner(origin, options))
    return _told(found, options)


def _found(dump: SourceFile, path: Path, title: str, to_the_end: bool) -> bytes:
    """The XML of the first page of a title; templates may stand behind it.

    Raises:
        InputError: there is no such page.
    """
    wanted = title.replace("_", " ").strip()
    source: bytes | None = None
    nearest: list[str] = []
    waiting: list[str] = []
    for raw in dump.raw():
        if source is not None:
            continue
        name = title_of(raw.data)
        if name == wanted:
            source = raw.data
            if not to_the_end:
                break
        waiting.append(name)
        if len(waiting) >= _AT_A_TIME:
            nearest, waiting = _nearest(wanted, nearest + waiting), []
    if source is not None:
        return source
    nearest = _nearest(wanted, nearest + waiting)
    damaged = f"; the dump is damaged {dump.damage}" if dump.damage else ""
    raise InputError(
        "The dump holds no page of this title", where=path,
        expected="the title of one of its pages, as it is written there", got=f"{title}{damaged}",
        fix=f"did you mean {' or '.join(map(repr, nearest))}" if nearest else "name another dump",
    )  # fmt: skip


def _document(page: Page, cleaner: Cleaner) -> Document:
    try:
        return cleaner.document(page, trace=True)
    except (PipelineError, MemoryError, OSError):
        raise
    except Exception as error:
        raise InputError(
            "The page cannot be cleaned", where=page.title, expected="wiki markup",
            got=f"{type(error).__name__}: {error}",
            fix="report it with the page's name; a run sets the page aside",
        ) from error  # fmt: skip


def _read(source: bytes, path: Path, site: Site) -> Page:
    try:
        return read_page(source, site)
    except SyntaxError as error:
        raise InputError(
            "The page cannot be read", where=f"{path}, {title_of(source)}",
            expected="XML", got=error, fix="fetch the dump again; a run sets the page aside",
        ) from error  # fmt: skip


def _nearest(wanted: str, titles: list[str]) -> list[str]:
    """The titles most like the one wanted, whatever their case."""
    lower = {title.lower(): title for title in reversed(titles)}
    return [lower[name] for name in difflib.get_close_matches(wanted.lower(), lower, _NEAREST)]


def _told(found: Document, options: Options) -> dict[str, Any]:
    cleaned, account = found.cleaned, found.account
    return {
        "title": found.page.title,
        "id": found.page.id,
        "revision": found.page.revision,
        "url": found.url,
        "language": found.language,
        "outcome": _outcome(found, options),
        "verdict": account.verdict._asdict() if account.verdict else None,
        "wikitext": found.page.text,
        "text": found.text,
        "constructs": {"kept": dict(cleaned.kept), "lost": dict(cleaned.lost)},
        "templates": dict(cleaned.templates.most_common()),
        "rules": {
            rule: {
                "times": times,
                "characters": account.lost[rule],
                "sample": account.samples.get(rule, ""),
            }
            for rule, times in account.done.items()
        },
        "hits": [hit._asdict() for hit in found.hits],
        "residue": dict(residue(found.text)),
        "steps": [asdict(step) for step in cleaned.trace or []],
    }


def _outcome(found: Document, options: Options) -> str:
    """What a run would do with the page, leaving duplicates apart."""
    page = found.page
    if reason := page.no_article:
        return reason
    if not found.text:
        return "empty"
    if found.account.verdict is not None:
        return found.account.verdict.rule
    return "contaminated" if found.hits and options.contaminated == "drop" else "kept"
