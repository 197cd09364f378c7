"""Documents in JSON lines to token ids, a range of a shard at a time. Workers load no torch.

What a document's ids are, in which split it lies, and in which order it comes depend on nothing
but the document, the tokenizer and the place in its shard; so not on the number of workers.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tasks.tokens.indexed import Ids, best_dtype

SPLITS = ("train", "validation", "test")
RANGE_BYTES = 1 << 18
"""One batch of the tokenizer: its encodings take some fifty times the text's bytes."""


@dataclass(frozen=True)
class Rules:
    """What decides on ids and splits.

    Attributes:
        tokenizer: a tokenizer.json.
        sha256: its digest.
        vocab_size: the model's.
        end_of_document: the id that ends each document.
        validation: share of the documents, 0 to 1.
        test: share of the documents, 0 to 1.
        seed: another one deals the documents differently.
    """

    tokenizer: Path
    sha256: str
    vocab_size: int
    end_of_document: int
    validation: float
    test: float
    seed: int


@dataclass(frozen=True)
class Range:
    """The lines of a shard that begin at bytes `start` to `stop`."""

    shard: Path
    start: int
    stop: int


@dataclass
class Encoded:
    """A range's documents in order, and what was set aside."""

    ids: Ids = field(default_factory=lambda: np.empty(0, np.uint16))
    lengths: Ids = field(default_factory=lambda: np.empty(0, np.int32))
    documents: list[dict[str, Any]] = field(default_factory=list)
    set_aside: list[dict[str, Any]] = field(default_factory=list)


def ranges(shards: list[Path]) -> Iterator[Range]:
    """Cut shards into ranges of `RANGE_BYTES`, in order."""
    for shard in shards:
        size = shard.stat().st_size
        for start in range(0, size, RANGE_BYTES):
            yield Range(shard, start, min(start + RANGE_BYTES, size))


def encode(rules: Rules, part: Range) -> Encoded:
    """Tokenize a range's documents, an end-of-document after each.

    A line that is empty, no JSON, or no document with an id and a text is set aside with its place
    and the reason.
    """
    result = Encoded()
    texts: list[str] = []
    for offset, line in _lines(part):
        document = _document(line)
        if isinstance(document, str):
            place = {"shard": part.shard.name, "offset": offset, "reason": document}
            result.set_aside.append(place)
            continue
        texts.append(document.pop("text"))
        document["split"] = split_of(document["id"], rules)
        result.documents.append(document)
    pieces = _ids(texts, rules)
    result.ids = np.concatenate([*pieces, np.empty(0, best_dtype(rules.vocab_size))])
    result.lengths = np.array([len(piece) for piece in pieces], np.int32)
    return result


def split_of(identifier: str, rules: Rules) -> str:
    """The split of a document: by a hash of its id, so always the same, and of one id only one."""
    digest = hashlib.sha256(f"{rules.seed}:{identifier}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    if share < rules.test:
        return "test"
    return "validation" if share < rules.test + rules.validation else "train"


def _ids(texts: list[str], rules: Rules) -> list[Ids]:
    tokenizer, dtype = _tokenizer(rules.tokenizer, rules.sha256), best_dtype(rules.vocab_size)
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [np.array([*e.ids, rules.end_of_document], dtype) for e in encodings]


@functools.cache
def _tokenizer(path: Path, sha256: str) -> Tokenizer:
    # A worker is one processor. And a process that has used the library's own threads complains on
    # the terminal at each child it starts.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return Tokenizer.from_file(str(path))


def _lines(part: Range) -> Iterator[tuple[int, bytes]]:
    with open(part.shard, "rb") as file:
        if part.start:
            # A line belongs to the range in which it begins.
            file.seek(part.start - 1)
            file.readline()
        while (offset := file.tell()) < part.stop:
            yield offset, file.readline()


def _document(line: bytes) -> dict[str, Any] | str:
    """Return id, title and text, or why there is no document."""
    if not line.strip():
        return "an empty line"
    try:
        value = json.loads(line)
    except ValueError:
        return "no JSON"
    if not isinstance(value, dict) or "id" not in value:
        return "no document with an id"
    text, title = value.get("text"), value.get("title")
    if not isinstance(text, str) or not text.strip():
        return "no text"
    return {"id": str(value["id"]), "title": str(title or ""), "text": text}
