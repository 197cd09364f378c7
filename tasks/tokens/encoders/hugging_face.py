"""The `tokenizers` library: every tokenizer.json, and the judge of all that is faster."""

from __future__ import annotations

import os

import numpy as np
from tokenizers import Tokenizer

from tasks.tokens.encoders import Ids, Lengths, Name, Spec


class HuggingFace:
    """See `Encoder`."""

    name: Name = "hugging_face"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, texts: list[str]) -> tuple[Ids, Lengths]:
        """See `Encoder`."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        pieces = [np.array(encoding.ids, np.uint32) for encoding in encodings]
        lengths = np.array([len(piece) for piece in pieces], np.int32)
        return np.concatenate([*pieces, np.empty(0, np.uint32)]), lengths


def load(spec: Spec) -> HuggingFace:
    """Read a tokenizer.json."""
    # A worker is one processor. And a process that has used the library's own threads complains on
    # the terminal at each child it starts.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    tokenizer = Tokenizer.from_file(str(spec.file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return HuggingFace(tokenizer)
