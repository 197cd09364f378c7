"""Texts to ids: one encoder a file, one interface. Light: a library is imported where it runs.

    choice = choose(spec, sample)          in the parent, once; `choice.facts()` is for the record
    ids, lengths = load(choice.spec).encode(texts)        in a worker

Ids are the tokenizer's for the text alone: nothing is put before it or after it. Text that spells a
special token (`<|endoftext|>` in a document) becomes that token where the tokenizer itself does so.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Name = Literal["hugging_face", "gigatoken", "tiktoken", "sentencepiece", "slow"]
SOME_TOKENS = 2000
"""How many of a vocabulary's tokens the fuzz set draws from."""

Ids = NDArray[np.uint32]
Lengths = NDArray[np.int32]


@dataclass(frozen=True)
class Spec:
    """What a worker needs to encode; small, and equal where the ids are equal.

    Attributes:
        encoder: the file in this package that runs.
        own: the tokenizer's own encoder, which a fast one is measured by.
        file: a tokenizer.json; a SentencePiece model for `sentencepiece`; a folder for `slow`.
        sha256: its digest.
    """

    encoder: Name
    own: Name
    file: Path
    sha256: str


class Encoder(Protocol):
    """Texts to ids, in one process and one thread."""

    name: Name

    def encode(self, texts: list[str]) -> tuple[Ids, Lengths]:
        """Ids of all texts one after the other, and how many each text has."""


class Own(Encoder, Protocol):
    """A tokenizer's own encoder."""

    def ids_by_token(self) -> dict[str, int]:
        """The whole vocabulary, added tokens included."""

    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer itself would put before a text and after it."""


class Measure(Own, Protocol):
    """One that fast encoders are measured by."""

    def vocabulary(self) -> tuple[list[str], list[str]]:
        """Texts of some of its tokens, always the same, and of its added or control tokens."""


@functools.cache
def load(spec: Spec) -> Encoder:
    """The encoder that a spec names; made once a process.

    Raises:
        Unsuited: a fast encoder does not do for this tokenizer.
    """
    module: Any = importlib.import_module(f"{__name__}.{spec.encoder}")
    encoder: Encoder = module.load(spec)
    return encoder


def between(plain: list[int], whole: list[int]) -> tuple[list[int], list[int]]:
    """What stands before and after one list in another."""
    starts = range(len(whole) - len(plain) + 1)
    start = next((at for at in starts if whole[at : at + len(plain)] == plain), 0)
    return whole[:start], whole[start + len(plain) :]


class Unsuited(Exception):
    """A fast encoder cannot do this tokenizer; says why. Never reaches a user as an error."""


@contextmanager
def unsuited(what: str) -> Iterator[None]:
    """Whatever fails inside means that a fast encoder is unsuited: a panic in Rust, too.

    Raises:
        Unsuited: with `what`, and what failed.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic is no Exception
        raise Unsuited(f"{what}: {error}") from error


def joined(pieces: Sequence[NDArray[Any]]) -> tuple[Ids, Lengths]:
    """Each text's ids as `Encoder.encode` returns them."""
    lengths = np.array([len(piece) for piece in pieces], np.int32)
    return np.concatenate([*pieces, np.empty(0, np.uint32)]).astype(np.uint32, copy=False), lengths
