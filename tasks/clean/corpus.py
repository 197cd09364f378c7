"""A corpus as documents in JSON lines, the same bytes for any number of workers.

Its files are cut into work shards, workers clean these, and one pass in order decides what repeats
an earlier document, and writes what stays.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from tasks.clean.assembly import assemble
from tasks.clean.counts import Counts
from tasks.clean.documents import clean_shard
from tasks.clean.pages import Options, Origin, cleaner
from tasks.clean.rules import prepare
from tasks.clean.shards import Cutter, Shard, layout
from tasks.core import executor, sources
from tasks.core.errors import InputError, ProofError
from tasks.core.executor import Executor
from tasks.core.fingerprint import digest, identity, sha256_file
from tasks.core.provenance import provenance
from tasks.core.storage.local import remove_path

_PAGES_TOLD = 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """How a corpus is made.

    Attributes:
        options: what bears on the documents.
        corpus: what tells this corpus from any other.
        scratch: a folder that outlives a run that is killed.
        on_damage: see `Dump`.
        part_bytes: a part ends with the first document that brings it to this size.
        workers: number of processes, and of threads that decompress.
        executor: where the workers are.
        progress: called as `progress(done, total, unit="bytes", note=…)`, in bytes of the files as
            they lie on the disk.
    """

    options: Options
    corpus: str
    scratch: Path
    on_damage: Literal["error", "keep"]
    part_bytes: int
    workers: int
    executor: Executor
    progress: Callable[..., None]


def write_parts(root: Path, names: Sequence[str], out: Path, run: Run) -> Counts:
    """Clean a corpus into `out/part-00000.jsonl`, `out/part-00001.jsonl`, …

    Documents stand in the order of the files. Memory is bounded by a few shards a worker. What an
    earlier run of the same corpus and options has sealed in the scratch folder is taken over.

    Args:
        root: the folder of the corpus.
        names: its files there, in order.
        out: an empty folder.
        run: how.

    Raises:
        ConfigError: the options ask for what is not there.
        InputError: see `Dump` and `Rows`.
        ProofError: nothing was left.
    """
    folder = _folder(run)
    try:
        run = replace(run, options=_with_copies(run.options, folder))
        return _written([(name, root / name) for name in names], out, run, folder)
    except (InputError, ProofError):
        # The same would be said again, and what cures it makes another corpus or other options.
        remove_path(folder)
        raise


def _written(files: Sequence[tuple[str, Path]], out: Path, run: Run, folder: Path) -> Counts:
    cutter = Cutter(folder, run.options, run.on_damage, run.workers)
    cleaning = _Cleaning(files, cutter, run)
    try:
        cleaning.run()
    finally:
        # It holds a file of the scratch folder open, and evaluation sets in memory.
        cleaner.cache_clear()
    sealed = [cutter.shard(number).sealed for number in range(len(cutter.cut.shards))]
    counts = assemble(sealed, out, folder / "compared", run.options, run.part_bytes)
    counts.damage += cutter.cut.damage
    counts.sources += [source.name for source in cutter.cut.sources]
    counts.too_short = cleaning.too_short
    for damage in cutter.cut.damage:
        _log.warning("a damaged file: %s", damage)
    for fate in (counts.set_aside, counts.timed_out):
        for page in fate.pages[:_PAGES_TOLD]:
            problem = page.get("error", "it took too long")
            title = f" ({page['title']})" if page["title"] else ""
            _log.warning("page %s%s was set aside: %s", page["id"], title, problem)
        if (more := fate.count - _PAGES_TOLD) > 0:
            _log.warning("and %s more; report.json names up to a thousand", more)
    dropped = [
        f"{count} {name}"
        for name, count in counts.whereabouts().items()
        if count and name not in ("articles", "redirects", "other_namespaces")
    ]
    if dropped and counts.articles:
        _log.warning(
            "%s of %s pages and rows became documents, not %s; report.json has samples",
            counts.articles, counts.pages, ", ".join(dropped),
        )  # fmt: skip
    if counts.articles == 0:
        raise ProofError(
            "No article was left", where=", ".join(path.name for _, path in files[:3]),
            expected="at least one article",
            got={name: count for name, count in counts.whereabouts().items() if count} or "no page",
            fix="lower the filters' thresholds, name the rows' text_field, or take another source",
        )  # fmt: skip
    return counts


def _folder(run: Run) -> Path:
    """The part of scratch for this corpus and these options; whatever else is there goes."""
    named = [*run.options.evaluation_sets, *filter(None, [run.options.template_table])]
    known = digest(
        {
            "corpus": run.corpus,
            "options": identity(run.options),
            "named": [sha256_file(sources.locate(url)) for url in named],
            "on_damage": run.on_damage,
            "layout": layout(),
            # After an upgrade the rest would be made another way.
            "packages": provenance()["packages"],
        }
    )
    for other in run.scratch.iterdir():
        if other.name != known:
            remove_path(other)
    folder = run.scratch / known
    folder.mkdir(exist_ok=True)
    return folder


def _with_copies(options: Options, folder: Path) -> Options:
    """Options that name copies of their files: all workers see them, and nobody changes them."""

    def copied(url: str) -> str:
        path = sources.locate(url)
        copy = folder / "named" / digest(url) / path.name
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            new = copy.with_name(f"{copy.name}.new")
            shutil.copyfile(path, new)
            os.replace(new, copy)
        return str(copy)

    table = options.template_table
    return options.model_copy(
        update={
            "template_table": table and copied(table),
            "evaluation_sets": tuple(map(copied, options.evaluation_sets)),
        }
    )


class _Cleaning:
    """A corpus on its way through the workers.

    Attributes:
        too_short: by evaluation set, how many items are too short to be found.
    """

    def __init__(self, files: Sequence[tuple[str, Path]], cutter: Cutter, run: Run) -> None:
        self.too_short = Counter[str]()
        self._files, self._cutter, self._run = files, cutter, run
        self._size = sum(path.stat().st_size for _, path in files)
        self._ready: set[Origin] = set()
        self._taken_over = self._articles = 0

    def run(self) -> None:
        """Clean all shards that are not sealed."""
        run, sent = self._run, deque[Shard]()
        work = partial(clean_shard, run.options)
        for articles in executor.run(work, self._open(sent), run.workers, run.executor):
            self._articles += articles
            self._tell(sent.popleft())

    def _open(self, sent: deque[Shard]) -> Iterator[Shard]:
        for shard in self._cutter.shards(self._files, self._reading):
            for source in shard.sources.values():
                self._prepare(source.origin)
            if shard.is_sealed:
                self._taken_over += 1
                self._tell(shard)
            else:
                sent.append(shard)
                yield shard

    def _prepare(self, origin: Origin) -> None:
        """Tell what is missing or wrong before the first page."""
        if origin not in self._ready:
            self._ready.add(origin)
            options = self._run.options
            prepare(options, origin.site.language)
            self.too_short = Counter(cleaner(origin, options, self._cutter.folder).too_short)

    def _reading(self, read: int) -> None:
        # Of a corpus that is read first, cleaning is the second half.
        if self._cutter.reads_first:
            self._run.progress(read, 2 * self._size, unit="bytes", note="reading")

    def _tell(self, shard: Shard) -> None:
        before = self._size if self._cutter.reads_first else 0
        note = f"{self._articles} articles"
        if self._taken_over:
            note += f", shards taken over from an earlier run: {self._taken_over}"
        self._run.progress(before + shard.read, before + self._size, unit="bytes", note=note)
