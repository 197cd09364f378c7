"""Text that was kept from training: windows of ids, and the proof that training never saw them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.errors import ProofError

SPLITS = ("test", "validation")
"""In this order: validation is only read where test is too short."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeldOut:
    """Ids to predict, and where they come from.

    Attributes:
        windows: ids, each window of one length; all but a window's first id are predicted.
        documents: split, index, id, title and tokens of each document that the windows touch.
    """

    windows: list[list[int]]
    documents: list[dict[str, Any]]

    @property
    def predicted(self) -> int:
        """Number of predicted ids."""
        return sum(len(window) - 1 for window in self.windows)


def choose(data: Path, dtype: str, length: int, most: int, least: int) -> HeldOut:
    """Cut the test split, then validation if need be, into windows of `length` ids.

    Documents follow each other as in training, each with its end-of-document. What does not fill
    a window is left; a corpus shorter than one window is one shorter window.

    Args:
        data: the token dataset's folder.
        dtype: an id's, as numpy names it.
        length: ids a window.
        most: predicted ids, at most.
        least: predicted ids, at least.

    Raises:
        ProofError: there are fewer than `least`.
    """
    import numpy as np

    listed = [document for document in read_documents(data) if document["split"] in SPLITS]
    held = sum(document["tokens"] for document in listed)
    require(held, length, most, least, data)
    count = _windows(length, most)
    pieces: list[Any] = []
    documents: list[dict[str, Any]] = []
    for split in SPLITS:
        inside = [document for document in listed if document["split"] == split]
        missing = count * length - sum(map(len, pieces))
        if not inside or missing <= 0:
            continue
        ids = np.fromfile(data / f"{split}.bin", dtype, missing)
        pieces.append(ids)
        documents += _touched(inside, len(ids))
    stream = np.concatenate([*pieces, np.empty(0, dtype)]).astype(int).tolist()
    whole = len(stream) // length
    windows = [stream[i * length : (i + 1) * length] for i in range(whole)] or [stream]
    used = sum(map(len, windows))
    chosen = HeldOut(windows, _touched(documents, used))
    if chosen.predicted < count * (length - 1):
        _log.warning("held-out text is short: %d tokens to predict", chosen.predicted)
    return chosen


def require(held: int, length: int, most: int, least: int, where: object) -> None:
    """Refuse held-out text that is too short; asks for its size only, so that it can come early.

    Args:
        held: ids in the splits that are kept from training.
        length: ids a window.
        most: predicted ids, at most.
        least: predicted ids, at least.
        where: what to name in the error.

    Raises:
        ProofError: `choose` would find fewer than `least`.
    """
    held = min(held, _windows(length, most) * length)
    predicted = held // length * (length - 1) if held >= length else max(held - 1, 0)
    if predicted < max(least, 1):
        raise ProofError(
            "There is too little held-out text to measure on", where=where,
            expected=f"at least {least} tokens to predict in {' and '.join(SPLITS)}",
            got=predicted,
            fix="raise tokens.test, take more documents, or lower evaluate.min_tokens",
        )  # fmt: skip


def prove_unseen(
    documents: Sequence[dict[str, Any]], data: Path, ledger: Path, source: int | None = 0
) -> dict[str, Any]:
    """Show that no training sample took a token from any of these documents.

    Args:
        documents: held-out ones.
        data: the token dataset's folder.
        ledger: the training run's: JSON lines with the source and the documents of each rank's
            samples, in the numbering of the source's training split.
        source: which of the run's sources this dataset is; None where it is none of them. The
            ids of the others, of other corpora, say nothing here: they were split alike, so what
            they share with this one lies in the same split.

    Returns:
        training_documents (number seen), training_samples, shared (an empty list).

    Raises:
        ProofError: a document was seen in training.
    """
    ids = {d["index"]: d["id"] for d in read_documents(data) if d["split"] == "train"}
    seen: set[tuple[int, int]] = set()
    samples = 0
    for line in _json_lines(ledger):
        for rank in zip(line["sources"], line["documents"], strict=True):
            for place, sample in zip(*rank, strict=True):
                seen.update((place, index) for index in sample)
                samples += 1
    own = {ids[index] for place, index in seen if place == source}
    shared = sorted({document["id"] for document in documents} & own)
    if shared or not samples:
        raise ProofError(
            "The evaluation text is not held out", where=ledger,
            expected="training samples, and none from the documents evaluated on",
            got=f"{samples} samples, shared documents {shared}",
            fix="build the tokens stage anew: a document lies in two splits",
        )  # fmt: skip
    return {"training_documents": len(seen), "training_samples": samples, "shared": shared}


def read_documents(data: Path) -> list[dict[str, Any]]:
    """Every document of a token dataset, in order."""
    return list(_json_lines(data / "documents.jsonl"))


def _windows(length: int, most: int) -> int:
    """How many windows are wanted."""
    return max(1, most // (length - 1))


def _touched(documents: Sequence[dict[str, Any]], tokens: int) -> list[dict[str, Any]]:
    """The first documents, as many as hold `tokens` ids."""
    touched = []
    for document in documents:
        if tokens <= 0:
            break
        touched.append(document)
        tokens -= document["tokens"]
    return touched


def _json_lines(path: Path) -> Iterable[Any]:
    with open(path, encoding="utf-8") as file:
        yield from map(json.loads, file)
