"""A dump as shards of documents: JSON lines, the same bytes for any number of workers.

Pages are cut from the dump in this process, and read, cleaned and counted in the workers. Where
duplicates go, documents wait in the scratch folder until all are there to be compared.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO, Literal

from megatron_bridge.launch import pool
from tasks.clean import duplicates
from tasks.clean.counts import Counts
from tasks.clean.dedup import Marks, marks
from tasks.clean.dump import Dump
from tasks.clean.filters import too_little_left
from tasks.clean.library import Library
from tasks.clean.mediawiki import TEMPLATE, Page, day_in, day_of, is_template, read_page, title_of
from tasks.clean.pages import Cleaner, Options, Origin, cleaner
from tasks.clean.rules import prepare
from tasks.core.errors import ConfigError, InputError, RetryableError

# Bytes of XML a worker gets at a time: enough to hide the cost of handing it over.
_BATCH = 1 << 19

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """How a corpus is made.

    Attributes:
        options: what bears on the documents.
        scratch: an empty folder.
        on_damage: see `Dump`.
        shard_bytes: a shard ends with the first document that brings it to this size.
        workers: number of processes, and of threads that decompress.
        progress: called as `progress(done, total, unit="bytes", note=…)`, in bytes of the dumps as
            they lie on the disk.
    """

    options: Options
    scratch: Path
    on_damage: Literal["error", "keep"]
    shard_bytes: int
    workers: int
    progress: Callable[..., None]


def write_shards(dumps: Iterable[Path], out: Path, run: Run) -> Counts:
    """Clean dumps into `out/part-00000.jsonl`, `out/part-00001.jsonl`, …

    Documents stand in the order of the dumps. Memory is bounded by a few batches a worker.

    Args:
        dumps: dump files, in order.
        out: an empty folder.
        run: how.

    Raises:
        ConfigError: the options ask for what is not there.
        InputError: see `Dump`.
    """
    counts = Counts()
    cleaned = _cleaned(list(dumps), counts, run)
    compared = run.options.duplicates != "keep" or run.options.drop_repeated_paragraphs
    try:
        with _Shards(out, run.shard_bytes) as shards:
            lines = _unique(cleaned, counts, run) if compared else (line for line, _ in cleaned)
            for line in lines:
                shards.write(line)
    finally:
        # The next run in this process may find other templates under the same names.
        cleaner.cache_clear()
    for fate in (counts.set_aside, counts.timed_out):
        for page in fate.pages:
            problem = page.get("error", "it took too long")
            _log.warning("page %s (%s) was set aside: %s", page["id"], page["title"], problem)
        if more := fate.count - len(fate.pages):
            _log.warning("and %s more", more)
    return counts


def origin_of(
    path: Path,
    options: Options,
    folder: Path,
    progress: Callable[[int], None],
    threads: int = 1,
    on_damage: Literal["error", "keep"] = "keep",
) -> Origin:
    """What is known of a dump before its first page is cleaned: its templates and its date.

    Args:
        path: the dump.
        options: whether templates are asked for. If not, the file's name may tell the date.
        folder: where to keep the templates.
        progress: called with the bytes that have been read.
        threads: see `Dump`.
        on_damage: see `Dump`.
    """
    dump = Dump(path, on_damage, progress, threads)
    today = day_in(path.name)
    if options.templates == "table":
        next(iter(dump.raw()))
        return Origin(dump.site, today)
    newest: list[date] = []
    file = folder / f"{path.name}.templates"
    some = len(Library.write(file, _templates(dump, newest))) > 0
    return Origin(dump.site, today or max(newest, default=None), file if some else None)


def _templates(dump: Dump, newest: list[date]) -> Iterator[tuple[str, str]]:
    for source in dump.raw():
        if day := day_of(source):
            newest[:] = [max([day, *newest])]
        if is_template(source):
            # A template that cannot be read is told when the page's turn comes.
            with suppress(SyntaxError):
                page = read_page(source, dump.site)
                if page.namespace == TEMPLATE:
                    yield page.title.partition(":")[2], page.text


@dataclass(frozen=True)
class _Batch:
    origin: Origin
    options: Options
    compared: bool
    pages: list[bytes]


def _cleaned(paths: list[Path], counts: Counts, run: Run) -> Iterator[tuple[bytes, Marks | None]]:
    """The documents in order, each with what it is compared by."""
    results = pool.run(_process, _batches(paths, counts, run), run.workers)
    for documents, batch_counts in results:
        counts.add(batch_counts)
        yield from documents


def _batches(paths: list[Path], counts: Counts, run: Run) -> Iterator[_Batch]:
    passes = 1 if run.options.templates == "table" else 2
    total = sum(path.stat().st_size for path in paths) * passes
    compared = run.options.duplicates != "keep" or run.options.drop_repeated_paragraphs
    before = 0

    def told(note: Callable[[], str]) -> Callable[[int], None]:
        offset = before
        return lambda done: run.progress(offset + done, total, unit="bytes", note=note())

    for path in paths:
        reading = told(lambda: "templates")
        origin = origin_of(path, run.options, run.scratch, reading, run.workers, run.on_damage)
        before += path.stat().st_size * (passes - 1)
        # What is missing or wrong is told before the first page.
        counts.too_short = Counter(cleaner(origin, run.options).too_short)
        prepare(run.options, origin.site.language)
        cleaning = told(lambda: f"{counts.articles} articles")
        dump = Dump(path, run.on_damage, cleaning, run.workers)
        for sources in _grouped(dump.raw()):
            yield _Batch(origin, run.options, compared, sources)
        before += path.stat().st_size
        if dump.damage is not None:
            _log.warning("%s is damaged %s", path.name, dump.damage)
            counts.damage.append(f"{path.name}: {dump.damage}")


def _grouped(sources: Iterable[bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for source in sources:
        group.append(source)
        size += len(source)
        if size >= _BATCH:
            yield group
            group, size = [], 0
    if group:
        yield group


def _process(batch: _Batch) -> tuple[list[tuple[bytes, Marks | None]], Counts]:
    documents: list[tuple[bytes, Marks | None]] = []
    counts = Counts()
    machine = cleaner(batch.origin, batch.options)
    for source in batch.pages:
        counts.pages += 1
        title, number = title_of(source), ""
        try:
            page = read_page(source, batch.origin.site)
            title, number = page.title, page.id
            if document := _document(page, machine, batch.compared, counts):
                documents.append(document)
        except (ConfigError, InputError):
            raise
        except MemoryError as error:
            raise RetryableError("Out of memory", where=title, fix="use fewer workers") from error
        # One page must not stop a dump of millions: it is named in the counts.
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            counts.set_aside.note({"id": number, "title": title, "error": problem})
    return documents, counts


def _document(
    page: Page, machine: Cleaner, compared: bool, counts: Counts
) -> tuple[bytes, Marks | None] | None:
    if reason := page.no_article:
        setattr(counts, reason, getattr(counts, reason) + 1)
    elif found := machine.article(page, counts):
        # What cannot be written is set aside, and must not be counted as an article before that.
        line = _encoded(found.record())
        if compared:
            return line, marks(found.text, machine.options.min_repeated_words)
        counts.note_document(found.text, page.title, found.language)
        return line, None
    return None


def _unique(
    documents: Iterable[tuple[bytes, Marks | None]], counts: Counts, run: Run
) -> Iterator[bytes]:
    """The documents without what repeats others, once all of them are known."""
    waiting, folder, work = (run.scratch / name for name in ("waiting.jsonl", "marks", "compared"))
    work.mkdir()
    with open(waiting, "wb") as file:

        def written() -> Iterator[Marks]:
            for line, found in documents:
                file.write(line)
                if found is not None:
                    yield found

        duplicates.write_marks(folder, written())
    plan = duplicates.plan([folder], work, run.options)
    with open(waiting, "rb") as lines:
        for number, line in enumerate(lines):
            record = json.loads(line)
            if reason := plan.reason(number):
                counts.duplicates[reason] += 1
                sample = {"title": record["title"], "text": record["text"][:300]}
                counts.samples.note(reason, sample)
                continue
            text, gone = plan.kept_lines(number, record["text"])
            for dropped in gone:
                counts.note_dropped(dropped, record["title"])
            if not text:
                counts.duplicates["duplicate"] += 1
                continue
            if gone and (verdict := too_little_left(text, record["language"], run.options)):
                counts.note_verdict(verdict, record["title"], text)
                continue
            counts.note_document(text, record["title"], record["language"])
            yield _encoded({**record, "text": text}) if gone else line
    shutil.rmtree(work)


def _encoded(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


class _Shards:
    """Writes documents one after the other, and starts a new file when one is full."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._count = self._size = 0
        self._file: BinaryIO | None = None
        self._stack = ExitStack()

    def __enter__(self) -> _Shards:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def write(self, document: bytes) -> None:
        if self._file is None:
            path = self._folder / f"part-{self._count:05}.jsonl"
            self._file = self._stack.enter_context(open(path, "wb"))
            self._count, self._size = self._count + 1, 0
        self._file.write(document)
        self._size += len(document)
        if self._size >= self._limit:
            self._stack.close()
            self._file = None
