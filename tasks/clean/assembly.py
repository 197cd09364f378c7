"""Sealed shards to parts: one pass in order that leaves out what repeats an earlier document."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from tasks.clean import duplicates
from tasks.clean.counts import Counts
from tasks.clean.documents import Result, are_compared, encoded
from tasks.clean.duplicates import Plan
from tasks.clean.filters import too_little_left
from tasks.clean.pages import Options


def assemble(
    sealed: Sequence[Path], out: Path, work: Path, options: Options, part_bytes: int
) -> Counts:
    """Write the documents that stay into `out/part-00000.jsonl`, `out/part-00001.jsonl`, …

    Args:
        sealed: the folders of all shards, in order.
        out: an empty folder.
        work: a folder to be made and taken away, for as many bytes as the shards' marks have.
        options: which documents go.
        part_bytes: a part ends with the first document that brings it to this size.

    Returns:
        Where every page of the shards went.
    """
    counts = Counts()
    results = [Result(folder) for folder in sealed]
    for result in results:
        counts.add(result.counts())
    lines = chain.from_iterable(result.lines() for result in results)
    stay = _unique(results, lines, work, options, counts) if are_compared(options) else lines
    with _Parts(out, part_bytes) as parts:
        for line in stay:
            parts.write(line)
    return counts


def _unique(
    results: Sequence[Result], lines: Iterator[bytes], work: Path, options: Options, counts: Counts
) -> Iterator[bytes]:
    """The documents without what repeats others."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    plan = duplicates.plan([result.marks for result in results], work, options)
    sources = _sources(results)
    for number, line in enumerate(lines):
        record = json.loads(line)
        if reason := plan.reason(number):
            counts.duplicates[reason] += 1
            counts.dropped[reason] += len(record["text"])
            counts.duplicates_across += int(sources[plan.keeper[number]] != sources[number])
            sample = {"title": _name(record), "text": record["text"][:300]}
            counts.samples.note(reason, sample)
        elif kept := _without_repeated(record, number, plan, options, counts):
            yield line if kept is record else encoded(kept)
    shutil.rmtree(work)


def _without_repeated(
    record: dict[str, Any], number: int, plan: Plan, options: Options, counts: Counts
) -> dict[str, Any] | None:
    """A document without the paragraphs that repeat others; None where too little is left."""
    text, gone = plan.kept_lines(number, record["text"])
    for dropped in gone:
        counts.note_dropped(dropped, _name(record))
    if not text:
        counts.duplicates["duplicate"] += 1
        return None
    if gone and (verdict := too_little_left(text, record["language"], options)):
        counts.note_verdict(verdict, _name(record), text)
        plan.release(number)
        return None
    counts.note_document(text, _name(record), record["language"], record["source"])
    return {**record, "text": text} if gone else record


def _name(record: dict[str, Any]) -> str:
    return str(record["title"] or record["id"])


def _sources(results: Sequence[Result]) -> Any:
    """The number of each document's source file: uint32 [documents]."""
    import numpy as np

    runs = [run for result in results for run in result.documents().items()]
    numbers = np.array([source for source, _ in runs], np.uint32)
    return np.repeat(numbers, [count for _, count in runs])


class _Parts:
    """Writes documents one after the other, and starts a new file when one is full."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._count = self._size = 0
        self._file: BinaryIO | None = None
        self._stack = ExitStack()

    def __enter__(self) -> _Parts:
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
