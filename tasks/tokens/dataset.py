"""The splits on disk: ids in Megatron's format, and which document is which."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.core.errors import ProofError
from tasks.tokens.encode import SPLITS, Job, Splits
from tasks.tokens.indexed import CODES
from tasks.tokens.shards import Shards, Totals


def write(
    files: list[Path], out: Path, scratch: Path, job: Job, workers: int,
    progress: Callable[..., None],
) -> dict[str, Any]:  # fmt: skip
    """Write every split, `documents.jsonl` and `set_aside.jsonl`; memory does not grow with them.

    Args:
        files: JSON lines with `id`, `title`, `text`.
        out: an empty folder.
        scratch: what an earlier run of the same job left there is used.
        job: with splits.
        workers: processes; the bytes written do not depend on it.
        progress: the stage's.

    Returns:
        documents, tokens, bytes and set_aside in all, dtype (of an id), and in `splits` documents
        and tokens of each.

    Raises:
        ProofError: a split that should have a share of the documents got none.
    """
    shards = Shards(scratch / "shards", files, job)
    totals = shards.build(workers, progress)
    _nothing_empty(totals, job.splits)
    merged = [
        shards.assemble(split, out / split, functools.partial(progress, unit="bytes", note=split))
        for split in SPLITS
    ]
    shards.gather("set_aside.jsonl", out / "set_aside.jsonl")
    _list(shards, out / "documents.jsonl")
    return {
        "documents": sum(split.documents for split in merged),
        "tokens": sum(split.tokens for split in merged),
        "dtype": CODES[job.code].name,
        "bytes": sum(split.bytes for split in merged),
        "set_aside": totals.set_aside,
        "splits": totals.datasets,
    }


def _list(shards: Shards, out: Path) -> None:
    """Gather the documents, each with its place in its whole split."""
    firsts = dict.fromkeys(SPLITS, 0)
    with open(out, "wb") as listed:
        for folder in shards.folders():
            found = dict.fromkeys(SPLITS, 0)
            with open(folder / "documents.jsonl", "rb") as part:
                for line in part:
                    # `{"split":"train","index":7,…`, where 7 counts within the shard.
                    _, _, _, split, _, _, rest = line.split(b'"', 6)
                    name = split.decode()
                    number, _, more = rest[1:].partition(b",")
                    place = firsts[name] + int(number)
                    listed.write(b'{"split":"%b","index":%d,%b' % (split, place, more))
                    found[name] += 1
            for name, count in found.items():
                firsts[name] += count


def _nothing_empty(totals: Totals, splits: Splits | None) -> None:
    if splits is None:
        return
    shares = {
        "train": 1 - splits.validation - splits.test,
        "validation": splits.validation,
        "test": splits.test,
    }
    for split, share in shares.items():
        if share > 0 and not totals.datasets[split]["documents"]:
            total = sum(counted["documents"] for counted in totals.datasets.values())
            raise ProofError(
                f"The {split} split is empty", where=f"tokens.{split}",
                expected=f"about {share * total:.1f} of {total} documents", got="none",
                fix="take more documents, a larger share, or another tokens.seed",
            )  # fmt: skip
