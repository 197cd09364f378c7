"""The splits on disk: ids in Megatron's format, and which document is which."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from megatron_bridge.launch import pool
from tasks.core.errors import ProofError
from tasks.tokens.encode import SPLITS, Encoded, Rules, encode, ranges
from tasks.tokens.indexed import Writer, best_dtype


def write(
    shards: list[Path], out: Path, rules: Rules, workers: int, progress: Callable[..., None]
) -> dict[str, Any]:
    """Write every split, `documents.jsonl` and `set_aside.jsonl`; memory does not grow with them.

    Args:
        shards: JSON lines with `id`, `title`, `text`.
        out: an empty folder.
        rules: see `encode`.
        workers: processes; the bytes written do not depend on it.
        progress: the stage's.

    Returns:
        documents, tokens, bytes and set_aside in all, dtype (of an id), and in `splits` documents
        and tokens of each.

    Raises:
        ProofError: a split that should have a share of the documents got none.
    """
    parts = list(ranges(shards))
    total = sum(part.stop - part.start for part in parts)
    set_aside = done = 0
    with ExitStack() as stack:
        writers = {
            split: stack.enter_context(Writer(out / split, best_dtype(rules.vocab_size)))
            for split in SPLITS
        }
        listed, aside = (
            stack.enter_context(open(out / name, "w", encoding="utf-8"))
            for name in ("documents.jsonl", "set_aside.jsonl")
        )
        results = pool.run(functools.partial(encode, rules), parts, workers)
        for part, encoded in zip(parts, results, strict=True):
            _number(encoded, writers)
            listed.writelines(_lines(encoded.documents))
            aside.writelines(_lines(encoded.set_aside))
            set_aside += len(encoded.set_aside)
            done += part.stop - part.start
            progress(done, total, unit="bytes", note=part.shard.name)
    splits = {
        split: {"documents": writer.documents, "tokens": writer.tokens}
        for split, writer in writers.items()
    }
    _nothing_empty(splits, rules)
    return {
        "documents": sum(split["documents"] for split in splits.values()),
        "tokens": sum(split["tokens"] for split in splits.values()),
        "dtype": best_dtype(rules.vocab_size).name,
        "bytes": sum((out / f"{split}.bin").stat().st_size for split in SPLITS),
        "set_aside": set_aside,
        "splits": splits,
    }


def _number(encoded: Encoded, writers: dict[str, Writer]) -> None:
    """Hand each split its documents, and note in each document its place there."""
    places = np.array([SPLITS.index(document["split"]) for document in encoded.documents], int)
    owners = np.repeat(places, encoded.lengths)
    firsts = {split: writer.documents for split, writer in writers.items()}
    for document, length in zip(encoded.documents, encoded.lengths.tolist(), strict=True):
        document |= {"index": firsts[document["split"]], "tokens": length}
        firsts[document["split"]] += 1
    for place, writer in enumerate(writers.values()):
        writer.add(encoded.ids[owners == place], encoded.lengths[places == place])


def _lines(values: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(value, ensure_ascii=False) + "\n" for value in values]


def _nothing_empty(splits: dict[str, dict[str, int]], rules: Rules) -> None:
    shares = {
        "train": 1 - rules.validation - rules.test,
        "validation": rules.validation,
        "test": rules.test,
    }
    for split, share in shares.items():
        if share > 0 and not splits[split]["documents"]:
            total = sum(counted["documents"] for counted in splits.values())
            raise ProofError(
                f"The {split} split is empty", where=f"tokens.{split}",
                expected=f"about {share * total:.1f} of {total} documents", got="none",
                fix="take more documents, a larger share, or another tokens.seed",
            )  # fmt: skip
