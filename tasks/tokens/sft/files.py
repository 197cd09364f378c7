"""Packs on disk: ids in `PREFIX.bin/.idx`, the mask in `PREFIX_mask.bin/.idx`, and their facts.

Both are Megatron's indexed datasets with a conversation as a sequence and a pack as a document;
the mask's numbers are bytes: 1 for a token that bears loss.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from megatron_bridge.data.packs import Packs
from tasks.core.errors import InputError, ProofError
from tasks.tokens import indexed, invariants
from tasks.tokens.sft.encode import Chat


def beside(prefix: Path, name: str) -> Path:
    """A file, or the prefix of a dataset, that belongs to the dataset of a prefix."""
    return prefix.with_name(f"{prefix.name}_{name}")


class Writer:
    """Writes ids and mask; their indices when it is left as a context.

    Args:
        prefix: path without `.bin` and `.idx`.
        dtype: of the ids.
    """

    def __init__(self, prefix: Path, dtype: indexed.DType) -> None:
        self._ids = indexed.Writer(prefix, dtype)
        self._mask = indexed.Writer(beside(prefix, "mask"), np.dtype("<u1"))
        self.loss_tokens = 0

    @property
    def packs(self) -> int:
        """Packs written."""
        return self._ids.documents

    @property
    def conversations(self) -> int:
        """Conversations written."""
        return self._ids.sequences

    @property
    def tokens(self) -> int:
        """Tokens written."""
        return self._ids.tokens

    def add(self, pack: list[Chat]) -> None:
        """Add the conversations of one pack."""
        lengths = np.array([len(chat.ids) for chat in pack], np.int32)
        mask = np.concatenate([chat.mask for chat in pack])
        for file, values in (
            (self._ids, np.concatenate([chat.ids for chat in pack])), (self._mask, mask),
        ):  # fmt: skip
            file.add(values, lengths, np.array([len(pack)]))
        self.loss_tokens += int(mask.sum())

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *error: Any) -> None:
        self._ids.__exit__(*error)
        self._mask.__exit__(*error)


def is_one(prefix: Path) -> bool:
    """Whether there are packs, and not plain text."""
    return beside(prefix, "mask.idx").is_file()


def facts(prefix: Path) -> dict[str, Any]:
    """What `PREFIX_tokens.json` says.

    Raises:
        InputError: there is none, so the dataset was not finished.
    """
    path = beside(prefix, "tokens.json")
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError) as error:
        raise InputError(
            "There is no finished chat dataset", where=prefix, expected=f"a file {path.name}",
            got=error, fix="write it (again) by `megaline tokenize-chat`",
        ) from error  # fmt: skip


def open_packs(prefix: Path) -> Packs:
    """The samples of a dataset.

    Raises:
        InputError: there is no finished one, or an index is none of Megatron's.
        ProofError: its files contradict each other.
    """
    told = facts(prefix)
    ids, mask = invariants.read(prefix), invariants.read(beside(prefix, "mask"))
    for what in ("lengths", "documents"):
        if not np.array_equal(getattr(ids, what), getattr(mask, what)):
            raise ProofError(
                "Ids and mask do not belong together", where=prefix,
                expected=f"the same {what}", got="others", fix="write the dataset again",
            )  # fmt: skip
    return Packs(
        ids.values, mask.values, ids.lengths, ids.documents, told["sequence_length"], told["pad"]
    )
