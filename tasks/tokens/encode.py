"""A block of JSON lines to token ids: what one worker does, and seals. No torch, no transformers.

What a document's ids are, in which split it lies, and in which order it comes depend on nothing
but the document, the tokenizer and its place in the corpus; so not on the number of workers.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from tasks.core import punkt
from tasks.tokens.encoders import Ids, Spec, load
from tasks.tokens.indexed import CODES, Writer
from tasks.tokens.lines import Block, Line, is_text, lines, parse

SPLITS = ("train", "validation", "test")
BATCH_BYTES = 1 << 18
"""One batch of the tokenizer: its encodings can take some fifty times the text's bytes."""

_SENTENCES_OF = 1_000_000
"""Characters that Megatron-LM's tool splits into sentences at a time."""

_CARRIED = ("id", "title", "revision", "source", "range")


@dataclass(frozen=True)
class Splits:
    """How documents are dealt to train, validation and test.

    Attributes:
        validation: share of the documents, 0 to 1.
        test: share of the documents, 0 to 1.
        seed: another one deals the documents differently.
    """

    validation: float
    test: float
    seed: int

    def of(self, identifier: str) -> str:
        """The split of a document: by a hash of its id, so always the same, and only one."""
        digest = hashlib.sha256(f"{self.seed}:{identifier}".encode()).digest()
        share = int.from_bytes(digest[:8], "big") / 2**64
        if share < self.test:
            return "test"
        return "validation" if share < self.test + self.validation else "train"


@dataclass(frozen=True)
class Job:
    """What decides on the bytes.

    Attributes:
        spec: the encoder.
        code: Megatron's number for the format of an id.
        end_of_document: the id after each document that has any; none without it.
        keys: fields of a line that hold its texts.
        sentences: whether each sentence is a sequence of its own.
        around: the special tokens before and after each sequence's ids.
        splits: where given, the one key's documents go to splits and are listed by id; else each
            key's go to a dataset of its own.
    """

    spec: Spec
    code: int
    end_of_document: int | None
    keys: tuple[str, ...] = ("text",)
    sentences: bool = False
    around: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    splits: Splits | None = None

    @property
    def datasets(self) -> tuple[str, ...]:
        """Names of the datasets that are written."""
        return SPLITS if self.splits else self.keys

    def identity(self) -> dict[str, Any]:
        """As JSON: where it is equal, so are the bytes."""
        told = asdict(self)
        told["spec"] = {"sha256": self.spec.sha256, "own": self.spec.own}
        return told


@dataclass
class Documents:
    """A batch: each document's sequences' texts by key, what is noted of it, and its first byte."""

    texts: dict[str, list[str]]
    counts: dict[str, list[int]]
    notes: list[dict[str, Any]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    bytes: int = 0


def encode_block(job: Job, folder: Path, block: Block) -> None:
    """Tokenize a block's documents and seal `folder/NUMBER`, which is there as a whole or not.

    It holds a dataset for each of `job.datasets`, set_aside.jsonl (what is no document, with the
    place and the reason), documents.jsonl (with splits) and counts.json. A line that is empty, no
    JSON, or has no text (or, for splits, no id) is set aside.
    """
    work = Path(mkdtemp(prefix=".", dir=folder))
    try:
        with ExitStack() as stack:
            _Shard(job, block, work, stack).write()
        os.rename(work, sealed(folder, block.number))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def sealed(folder: Path, number: int) -> Path:
    """The folder of a block's result."""
    return folder / f"{number:06}"


class _Shard:
    def __init__(self, job: Job, block: Block, folder: Path, stack: ExitStack) -> None:
        self.job, self.block, self.folder = job, block, folder
        self.encoder = load(job.spec)
        dtype = CODES[job.code]
        self.writers = [stack.enter_context(Writer(folder / n, dtype)) for n in job.datasets]
        names = ("set_aside.jsonl", *(["documents.jsonl"] if job.splits else []))
        files: list[BinaryIO] = [stack.enter_context(open(folder / n, "wb")) for n in names]
        self.aside, self.listed = files[0], files[-1]
        self.set_aside = 0

    def write(self) -> None:
        for batch in self._batches():
            if self.job.splits:
                self._deal(batch, self.job.splits)
            else:
                self._add(batch)
        counts = {
            name: {"documents": writer.documents, "tokens": writer.tokens}
            for name, writer in zip(self.job.datasets, self.writers, strict=True)
        }
        told = {"set_aside": self.set_aside, "datasets": counts}
        (self.folder / "counts.json").write_text(json.dumps(told), encoding="ascii")

    def _batches(self) -> Iterator[Documents]:
        batch = self._new()
        for line in lines(self.block):
            texts = self._texts(line)
            if isinstance(texts, str):
                self._set_aside(line.start, texts)
                continue
            note, found = texts
            batch.notes.append(note)
            batch.starts.append(line.start)
            for key, sequences in found.items():
                batch.texts[key] += sequences
                batch.counts[key].append(len(sequences))
            batch.bytes += len(line.data)
            if batch.bytes >= BATCH_BYTES:
                yield batch
                batch = self._new()
        if batch.notes:
            yield batch

    def _new(self) -> Documents:
        keys = self.job.keys
        return Documents({key: [] for key in keys}, {key: [] for key in keys})

    def _texts(self, line: Line) -> tuple[dict[str, Any], dict[str, list[str]]] | str:
        """What is noted of a document and its sequences by key, or why there is no document."""
        value = parse(line)
        if isinstance(value, str):
            return value
        note: dict[str, Any] = {}
        if self.job.splits:
            identifier = value.get("id")
            if not isinstance(identifier, int) and not is_text(identifier, line):
                return "no document with an id"
            place = {"source": self.block.file.name, "range": [line.start, line.stop]}
            note = {key: value[key] for key in _CARRIED if key in value}
            note = {**place, **note, "id": str(identifier), "title": str(value.get("title") or "")}
        found = {}
        for key in self.job.keys:
            sequences = _sequences(value.get(key), line, self.job.sentences)
            if sequences is None or (self.job.splits and not _is_one_text(sequences)):
                return "no text" if key == "text" else f"no text in {key}"
            found[key] = sequences
        return note, found

    def _add(self, batch: Documents) -> None:
        for key, writer in zip(self.job.keys, self.writers, strict=True):
            writer.add(*self._ids(batch, key))

    def _deal(self, batch: Documents, splits: Splits) -> None:
        """Hand each split its documents, and note in each document its place there."""
        ids, lengths, counts = self._ids(batch, self.job.keys[0])
        notes = batch.notes
        if not counts.all():
            for number in np.flatnonzero(counts == 0).tolist():
                self._set_aside(batch.starts[number], "no tokens")
            notes = [note for note, count in zip(notes, counts.tolist(), strict=True) if count]
        names = [splits.of(note["id"]) for note in notes]
        places = np.array([SPLITS.index(name) for name in names], np.int8)
        firsts = {name: w.documents for name, w in zip(SPLITS, self.writers, strict=True)}
        for note, name, length in zip(notes, names, lengths.tolist(), strict=True):
            told = {"split": name, "index": firsts[name], "tokens": length, **note}
            self.listed.write(_line(told))
            firsts[name] += 1
        owners = np.repeat(places, lengths)
        for place, writer in enumerate(self.writers):
            writer.add(ids[owners == place], lengths[places == place])

    def _ids(self, batch: Documents, key: str) -> tuple[Ids, NDArray[np.int32], NDArray[np.int64]]:
        ids, lengths = self.encoder.encode(batch.texts[key])
        ids = ids.astype(CODES[self.job.code], copy=False)
        ids, lengths = surrounded(ids, lengths, self.job.around)
        counts = np.array(batch.counts[key], np.int64)
        return closed(ids, lengths, counts, self.job.end_of_document)

    def _set_aside(self, offset: int, reason: str) -> None:
        place = {"shard": self.block.file.name, "offset": offset, "reason": reason}
        self.aside.write(_line(place))
        self.set_aside += 1


def surrounded(
    ids: Ids, lengths: NDArray[np.int32], around: tuple[tuple[int, ...], tuple[int, ...]]
) -> tuple[Ids, NDArray[np.int32]]:
    """Put special tokens before and after each sequence's ids."""
    before, after = around
    if not before and not after:
        return ids, lengths
    whole = lengths + np.int32(len(before) + len(after))
    starts = np.cumsum(whole, dtype=np.int64) - whole
    added = np.zeros(int(whole.sum()), bool)
    result = np.empty(len(added), ids.dtype)
    places = [starts + place for place in range(len(before))]
    places += [starts + len(before) + lengths + place for place in range(len(after))]
    for place, number in zip(places, before + after, strict=True):
        added[place], result[place] = True, number
    result[~added] = ids
    return result, whole


def closed(
    ids: Ids, lengths: NDArray[np.int32], counts: NDArray[np.int64], end_of_document: int | None
) -> tuple[Ids, NDArray[np.int32], NDArray[np.int64]]:
    """Leave out empty sequences, and end each document that has any, as Megatron-LM does.

    Args:
        ids: of all sequences, [sum of lengths].
        lengths: ids of each sequence, [sequences].
        counts: sequences of each document, [documents].
        end_of_document: the id to add to a document's last sequence.
    """
    kept = lengths > 0
    owners = np.repeat(np.arange(len(counts)), counts)[kept]
    lengths, counts = lengths[kept], np.bincount(owners, minlength=len(counts))
    if end_of_document is not None:
        last = (np.cumsum(counts) - 1)[counts > 0]
        ids = np.insert(ids, np.cumsum(lengths, dtype=np.int64)[last], end_of_document)
        lengths[last] += 1
    return ids, lengths, counts


def _sequences(value: Any, line: Line, sentences: bool) -> list[str] | None:
    """A text, or one that is in pieces already; None for anything else."""
    pieces = value if isinstance(value, list) and not sentences else [value]
    if not all(is_text(piece, line) for piece in pieces):
        return None
    return _sentences(pieces[0]) if sentences else pieces


def _is_one_text(sequences: list[str]) -> bool:
    return len(sequences) == 1 and bool(sequences[0].strip())


def _sentences(text: str) -> list[str]:
    split = punkt.load("english").tokenize
    starts = range(0, len(text), _SENTENCES_OF)
    return [one for start in starts for one in split(text[start : start + _SENTENCES_OF])]


def _line(value: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # Half of a surrogate pair in a title.
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"
