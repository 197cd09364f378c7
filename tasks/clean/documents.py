"""A work shard to documents: what one worker does, from its pages and rows to a sealed result."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tasks.clean import duplicates
from tasks.clean.counts import Counts
from tasks.clean.dedup import Marks, marks
from tasks.clean.mediawiki import Page, read_page, title_of
from tasks.clean.pages import Document, Options, cleaner
from tasks.clean.raw import Raw
from tasks.clean.rows import Row, read_row
from tasks.clean.shards import Shard, Source
from tasks.core.errors import ConfigError, InputError, RetryableError

# A cleaner is made for one page at a time, and a worker on a cluster may have threads.
_cleaning = threading.Lock()


@dataclass(frozen=True)
class Result:
    """A sealed shard, in its folder."""

    folder: Path

    @property
    def marks(self) -> Path:
        """The folder of what its documents are compared by, where they are."""
        return self.folder / "marks"

    def documents(self) -> dict[int, int]:
        """How many documents it has, by the number of their source file."""
        found = json.loads((self.folder / "documents.json").read_bytes())
        return {int(source): count for source, count in found.items()}

    def counts(self) -> Counts:
        """Where its pages went; documents that are still to be compared are not in it."""
        return Counts.restored(json.loads((self.folder / "counts.json").read_bytes()))

    def lines(self) -> Iterator[bytes]:
        """Yield its documents as they were written."""
        with open(self.folder / "documents.jsonl", "rb") as file:
            yield from file


def are_compared(options: Options) -> bool:
    """Whether a document may go for what stands before it."""
    return options.duplicates != "keep" or options.drop_repeated_paragraphs


def encoded(record: dict[str, Any]) -> bytes:
    """A document as a line of JSON."""
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def clean_shard(options: Options, shard: Shard) -> int:
    """Clean a shard's pages, and seal the result.

    Returns:
        How many documents it has.

    Raises:
        ConfigError: this worker does not see the shard.
        InputError: a page has several revisions.
        RetryableError: there is too little memory.
    """
    if not shard.folder.is_dir():
        raise ConfigError(
            "A worker does not see the folder of the run", where=shard.folder,
            expected="a folder that all workers of the cluster share", got="nothing there",
            fix="put MEGALINE_ROOT (or MEGALINE_SCRATCH, if set) on a file system they all mount",
        )  # fmt: skip
    with _cleaning:
        if not shard.is_sealed:
            with shard.sealing() as folder:
                _clean(options, shard, folder)
    return sum(Result(shard.sealed).documents().values())


def _clean(options: Options, shard: Shard, folder: Path) -> None:
    counts, documents = Counts(), Counter[int]()
    with open(folder / "documents.jsonl", "wb") as file:
        found = _documents(options, shard, file, counts, documents)
        if are_compared(options):
            duplicates.write_marks(folder / "marks", (marks for marks in found if marks))
        else:
            deque(found, 0)
    for name, told in (("documents", documents), ("counts", counts.state())):
        (folder / f"{name}.json").write_text(json.dumps(told), encoding="ascii")


def _documents(
    options: Options, shard: Shard, file: BinaryIO, counts: Counts, documents: Counter[int]
) -> Iterator[Marks | None]:
    """Write each document, and yield what it is compared by."""
    compared = are_compared(options)
    for number, raw in shard.raws():
        source = shard.sources[number]
        counts.note_page(source.name)
        named = _named(source, raw)
        try:
            page = _read(source, raw, options)
            named = {"id": page.id, "title": page.title}
            if reason := _no_article(page):
                setattr(counts, reason, getattr(counts, reason) + 1)
                continue
            document = cleaner(source.origin, options, shard.folder).article(page, counts)
            if document is None:
                continue
            # What cannot be written is set aside, and must not be counted as an article before.
            line = _line(document, source, raw)
            found = marks(document.text, options.min_repeated_words) if compared else None
        except (ConfigError, InputError):
            raise
        except MemoryError as error:
            where = f"{source.name}, {named['title'] or named['id']}"
            raise RetryableError("Out of memory", where=where, fix="use fewer workers") from error
        # One page must not stop a dump of millions: it is named in the counts.
        except Exception as error:
            counts.set_aside.note({**named, "error": _problem(error)})
            continue
        if not compared:
            told = document.page.title or document.page.id, document.language, source.name
            counts.note_document(document.text, *told)
        documents[number] += 1
        file.write(line)
        yield found


def _read(source: Source, raw: Raw, options: Options) -> Page | Row:
    if source.kind == "dump":
        try:
            return read_page(raw.data, source.origin.site)
        except InputError as error:
            raise error.at(source.name) from None
    row = read_row(raw.data, options)
    return row if row.id else row._replace(id=_place(source, raw))


def _named(source: Source, raw: Raw) -> dict[str, str]:
    """What a page that cannot be read is called."""
    if source.kind == "dump":
        return {"id": "", "title": title_of(raw.data)}
    return {"id": _place(source, raw), "title": ""}


def _place(source: Source, raw: Raw) -> str:
    return f"{source.name}:{raw.start}"


def _no_article(page: Page | Row) -> str | None:
    if isinstance(page, Page):
        return page.no_article
    return None if page.text.strip() else "without_text"


def _problem(error: Exception) -> str:
    # A row's reader says in words what is wrong.
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"


def _line(document: Document, source: Source, raw: Raw) -> bytes:
    place = {"source": source.name, "range": [raw.start, raw.stop]}
    return encoded({**document.record(), **place})
