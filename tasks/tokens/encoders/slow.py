"""Tokenizers that exist in Python only, through transformers.

Each worker imports transformers, and with it PyTorch where that is installed; expect kilobytes a
second rather than megabytes.
"""

from __future__ import annotations

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tasks.tokens.encoders import Ids, Lengths, Name, Spec, between, joined


class Slow:
    """See `Encoder`."""

    name: Name = "slow"

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def encode(self, texts: list[str]) -> tuple[Ids, Lengths]:
        """See `Encoder`."""
        ids = [self._tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return joined([np.array(piece, np.uint32) for piece in ids])

    def ids_by_token(self) -> dict[str, int]:
        """See `Own`."""
        return dict(self._tokenizer.get_vocab())

    def around(self) -> tuple[list[int], list[int]]:
        """See `Own`."""
        plain, whole = (
            self._tokenizer.encode("a", add_special_tokens=special) for special in (False, True)
        )
        return between(plain, whole)


def load(spec: Spec) -> Slow:
    """Read a tokenizer's folder."""
    tokenizer = AutoTokenizer.from_pretrained(
        spec.file, trust_remote_code=False, local_files_only=True
    )
    # A text longer than the model's context is no fault here.
    tokenizer.model_max_length = int(1e30)
    return Slow(tokenizer)
