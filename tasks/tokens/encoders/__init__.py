"""Texts to ids: one encoder a file, one interface. Light: a library is imported where it runs.

    choice = choose(spec, sample)          in the parent, once; `choice.facts()` is for the record
    ids, lengths = load(choice.spec).encode(texts)        in a worker

Ids are the tokenizer's for the text alone, no special tokens added: what Megatron-LM's
`preprocess_data.py` writes before its end-of-document. Text that spells a special token
(`<|endoftext|>` in a document) becomes that token where the tokenizer itself does so.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Name = Literal["hugging_face", "gigatoken", "tiktoken", "sentencepiece", "slow"]
Ids = NDArray[np.uint32]
Lengths = NDArray[np.int32]


@dataclass(frozen=True)
class Spec:
    """What a worker needs to encode; small, and equal where the ids are equal.

    Attributes:
        encoder: the file in this package that runs.
        file: a tokenizer.json; a SentencePiece model for `sentencepiece`; a folder for `slow`.
        sha256: its digest.
    """

    encoder: Name
    file: Path
    sha256: str


class Encoder(Protocol):
    """Texts to ids, in one process and one thread."""

    name: Name

    def encode(self, texts: list[str]) -> tuple[Ids, Lengths]:
        """Ids of all texts one after the other, and how many each text has."""


@functools.cache
def load(spec: Spec) -> Encoder:
    """The encoder that a spec names; made once a process."""
    module: Any = importlib.import_module(f"{__name__}.{spec.encoder}")
    encoder: Encoder = module.load(spec)
    return encoder
