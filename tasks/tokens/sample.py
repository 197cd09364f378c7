"""One sample of a token dataset as plain values: its tokens with their texts, and which bear loss.

In a text dataset all of them do.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tasks.core.errors import ConfigError, InputError
from tasks.tokens import invariants
from tasks.tokens.indexed import Ids
from tasks.tokens.sft import files

Sample = dict[str, Any]

_HELD = 8
"""Tokens that are waited for to complete a character: four bytes, and a few that are none."""


def pack(prefix: Path, index: int, tokenizer: Path) -> Sample:
    """A pack of a chat dataset; see `stretch`.

    Raises:
        ConfigError: there are fewer packs.
        InputError: a file is missing or damaged.
        ProofError: the files contradict each other.
    """
    packs = files.open_packs(prefix)
    _check(index, len(packs), "--index", "packs", prefix)
    first = int(packs.packs[index])
    return _chat(prefix, packs, first, packs.conversations(index), tokenizer) | {"index": index}


def conversation(prefix: Path, number: int, tokenizer: Path) -> Sample:
    """A conversation of a chat dataset, by its number over all packs; see `stretch`."""
    packs = files.open_packs(prefix)
    _check(number, int(packs.packs[-1]), "--document", "conversations", prefix)
    index = int(np.searchsorted(packs.packs, number, "right")) - 1
    first = number - int(packs.packs[index])
    borders = packs.conversations(index)[first : first + 2]
    return _chat(prefix, packs, number, borders, tokenizer) | {"index": index}


def document(prefix: Path, number: int, tokenizer: Path) -> Sample:
    """A document of a text dataset; see `stretch`."""
    ids, borders = _borders(prefix)
    _check(number, len(borders) - 1, "--document", "documents", prefix)
    return _text(prefix, ids, number, borders[number : number + 2], tokenizer)


def stretch(prefix: Path, index: int, length: int, tokenizer: Path) -> Sample:
    """Tokens `index * length` on of a text dataset, as they lie in the file.

    Returns:
        kind (text or chat), prefix, index, and documents: for each `document` (its number in the
        dataset), `note` (where it came from, None where nothing is) and `tokens`: `id`, `text`,
        `loss` (whether it bears any).

    Raises:
        ConfigError: there are fewer tokens.
        InputError: a file is missing or damaged.
        ProofError: the files contradict each other.
    """
    ids, borders = _borders(prefix)
    _check(index, -(-len(ids) // length), "--index", f"stretches of {length} tokens", prefix)
    start, stop = index * length, min((index + 1) * length, len(ids))
    first, last = np.searchsorted(borders[1:], [start, stop - 1], "right").tolist()
    within = np.clip(borders[first : last + 2], start, stop)
    return _text(prefix, ids, first, within, tokenizer) | {"index": index}


def _chat(prefix: Path, packs: Any, first: int, borders: Any, tokenizer: Path) -> Sample:
    decode = _Decoder(tokenizer)
    notes = _notes(files.beside(prefix, "documents.jsonl"), range(first, first + len(borders) - 1))
    documents = []
    for number, (start, stop) in enumerate(itertools.pairwise(borders), first):
        tokens = decode(packs.ids[start:stop].tolist(), packs.mask[start:stop].tolist())
        documents.append({"document": number, "note": notes.get(number), "tokens": tokens})
    return {"kind": "chat", "prefix": str(prefix), "documents": documents}


def _text(prefix: Path, ids: Ids, first: int, borders: Any, tokenizer: Path) -> Sample:
    decode, documents = _Decoder(tokenizer), []
    for number, (start, stop) in enumerate(itertools.pairwise(borders), first):
        tokens = decode(ids[start:stop].tolist(), [1] * int(stop - start))
        documents.append({"document": number, "note": None, "tokens": tokens})
    return {"kind": "text", "prefix": str(prefix), "documents": documents}


def _borders(prefix: Path) -> tuple[Ids, Ids]:
    """All ids of a text dataset, and where its documents begin and end in them."""
    read = invariants.read(prefix)
    sequences = np.concatenate([[0], np.cumsum(read.lengths, dtype=np.int64)])
    return read.values, sequences[read.documents]


def _notes(path: Path, numbers: range) -> dict[int, dict[str, Any]]:
    """What is noted of conversations, by number; line N is number N's."""
    if not path.is_file():
        return {}
    with open(path, encoding="utf-8") as file:
        lines = itertools.islice(file, numbers.start, numbers.stop)
        return {number: json.loads(line) for number, line in zip(numbers, lines, strict=False)}


class _Decoder:
    """Ids to texts that together are the whole text."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise InputError(
                "There is no tokenizer to show the text with", where=path,
                expected="a tokenizer.json", got="no such file",
                fix="name a tokenizer.json, or its folder, by --tokenizer",
            )  # fmt: skip
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no narrower one
            raise InputError(
                "A tokenizer.json cannot be read", where=path,
                expected="one that the installed tokenizers library knows", got=error,
            ) from error  # fmt: skip

    def __call__(self, ids: list[int], bears: list[int]) -> list[dict[str, Any]]:
        """Tokens; the text of one that holds part of a character stands in the last that does."""
        # Of what is decoded the beginning is only there for those whose text depends on it.
        start = done = 0
        tokens = []
        for place, (number, bear) in enumerate(zip(ids, bears, strict=True), 1):
            text = self._decode(ids[start:place])
            if text.endswith("\ufffd") and place < done + _HELD:
                text = ""
            else:
                text = text[len(self._decode(ids[start:done])) :]
                start, done = done, place
            tokens.append({"id": number, "text": text, "loss": bool(bear)})
        return tokens

    def _decode(self, ids: list[int]) -> str:
        known = [number for number in ids if number >= 0]
        return str(self._tokenizer.decode(known, skip_special_tokens=False))


def _check(number: int, count: int, option: str, what: str, prefix: Path) -> None:
    if not 0 <= number < count:
        raise ConfigError(
            "The dataset has no such sample", where=f"{option} of {prefix}",
            expected=f"0 to {count - 1}: it has {count} {what}" if count else f"some {what}",
            got=number if count else "none",
        )  # fmt: skip
