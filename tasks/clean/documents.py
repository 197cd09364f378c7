"""A dump as shards of documents: JSON lines, the same bytes for any number of workers."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from megatron_bridge.launch import pool
from tasks.clean.dump import Dump, Page, Site
from tasks.clean.filters import FILTERS, Thresholds, reason_to_drop
from tasks.clean.repair import repair
from tasks.clean.splitters import require
from tasks.clean.wiki import Namespaces, Wiki
from tasks.clean.wikitext import clean

# Characters of wikitext a worker gets at a time: enough to hide the cost of handing it over.
_BATCH = 1 << 19
_CJK = ("zh", "ja", "ko", "yue", "wuu", "gan", "lzh", "nan")
_TEMPLATES_LISTED = 1000

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rules:
    """What a document must be like."""

    thresholds: Thresholds
    repair: bool = True


@dataclass
class Counts:
    """Where every page went. `pages` is the sum of the fields up to `set_aside`."""

    pages: int = 0
    articles: int = 0
    redirects: int = 0
    other_namespaces: int = 0
    other_models: int = 0
    empty: int = 0
    filtered: Counter[str] = field(default_factory=Counter)
    set_aside: list[dict[str, str]] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    characters_in: int = 0
    characters_out: int = 0
    table_rows: int = 0
    unclosed: int = 0
    templates: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        """Add another's counts to these."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def accounted(self) -> int:
        """Pages whose whereabouts are known."""
        kept = self.articles + self.redirects + self.other_namespaces + self.other_models
        return kept + self.empty + self.filtered.total() + len(self.set_aside)

    def as_json(self) -> dict[str, Any]:
        """Plain values in a stable order, each filter named even where it dropped nothing."""
        templates = sorted(self.templates.items(), key=lambda item: (-item[1], item[0]))
        return {
            **vars(self),
            "filtered": {name: self.filtered[name] for name in FILTERS},
            "templates_dropped": self.templates.total(),
            "templates": dict(templates[:_TEMPLATES_LISTED]),
        }


def write_shards(
    dumps: Iterable[Path],
    out: Path,
    rules: Rules,
    *,
    on_damage: Literal["error", "keep"],
    shard_bytes: int,
    workers: int,
    progress: Callable[..., None],
) -> Counts:
    """Clean dumps into `out/part-00000.jsonl`, `out/part-00001.jsonl`, …

    A shard ends with the first document that brings it to `shard_bytes`; documents stand in the
    order of the dump. Memory is bounded by a few batches a worker and one page.

    Args:
        dumps: dump files, in order.
        out: an empty folder.
        rules: repair and filters.
        on_damage: see `Dump`.
        shard_bytes: size at which a shard ends.
        workers: number of processes.
        progress: called as `progress(done, total, unit="bytes", note=…)`, in bytes of the dumps
            as they lie on the disk.

    Raises:
        InputError: see `Dump`.
    """
    paths = list(dumps)
    total = sum(path.stat().st_size for path in paths)
    counts = Counts()

    def batches() -> Iterator[_Batch]:
        before = 0
        for path in paths:
            offset = before
            before += path.stat().st_size

            def tell(done: int, offset: int = offset) -> None:
                progress(offset + done, total, unit="bytes", note=f"{counts.articles} articles")

            dump = Dump(path, on_damage, tell)
            yield from _batches(dump, rules, counts)
            if dump.damage is not None:
                _log.warning("%s is damaged %s", path.name, dump.damage)
                counts.damage.append(f"{path.name}: {dump.damage}")

    with _Shards(out, shard_bytes) as shards:
        for documents, batch_counts in pool.run(_process, batches(), workers):
            counts.add(batch_counts)
            for document in documents:
                shards.write(document)
    for page in counts.set_aside:
        _log.warning("page %(id)s (%(title)s) was set aside: %(error)s", page)
    return counts


@dataclass(frozen=True)
class _Batch:
    site: Site
    rules: Rules
    pages: list[Page]


def _batches(dump: Dump, rules: Rules, counts: Counts) -> Iterator[_Batch]:
    """Articles in batches; what is none is counted here and needs no worker."""
    pages: list[Page] = []
    size = 0
    for page in dump:
        # The dump's language is known from its first page on.
        require(rules.thresholds.splitter, dump.site.language)
        counts.pages += 1
        if page.namespace != 0:
            counts.other_namespaces += 1
        elif page.redirect:
            counts.redirects += 1
        elif page.model != "wikitext":
            counts.other_models += 1
        else:
            pages.append(page)
            size += len(page.text)
        if size >= _BATCH:
            yield _Batch(dump.site, rules, pages)
            pages, size = [], 0
    if pages:
        yield _Batch(dump.site, rules, pages)


def _process(batch: _Batch) -> tuple[list[bytes], Counts]:
    documents, counts = [], Counts()
    site = batch.site
    wiki = Wiki(Namespaces.of(site.hidden, [site.namespaces.get(6, "File")]), site.language)
    for page in batch.pages:
        try:
            document, page_counts = _document(page, site, wiki, batch.rules)
        # One page must not stop a dump of millions: it is named in the counts.
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            document, page_counts = None, Counts()
            page_counts.set_aside.append({"id": page.id, "title": page.title, "error": problem})
        counts.add(page_counts)
        if document is not None:
            documents.append(document)
    return documents, counts


def _document(page: Page, site: Site, wiki: Wiki, rules: Rules) -> tuple[bytes | None, Counts]:
    cleaned = clean(page.text, wiki, page.title)
    text = cleaned.text
    if rules.repair:
        text = repair(text, cjk=site.language.partition("-")[0] in _CJK)
    counts = Counts(
        characters_in=len(page.text),
        table_rows=cleaned.table_rows,
        unclosed=cleaned.unclosed,
        templates=cleaned.templates,
    )
    if not text:
        counts.empty = 1
        return None, counts
    verdict = reason_to_drop(text, site.language, rules.thresholds)
    if verdict is not None:
        counts.filtered[verdict.rule] += 1
        return None, counts
    record = {
        "id": page.id,
        "url": site.url(page.title),
        "title": page.title,
        "text": text,
        "revision": page.revision,
    }
    line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
    counts.articles, counts.characters_out = 1, len(text)
    return line, counts


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
