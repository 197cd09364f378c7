"""The `tokenizers` library: every tokenizer.json, and the measure of all that is faster."""

from __future__ import annotations

import os
import random

import numpy as np
from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.tokens.encoders import SOME_TOKENS, Ids, Lengths, Name, Spec, between, joined


class HuggingFace:
    """See `Encoder`."""

    name: Name = "hugging_face"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, texts: list[str]) -> tuple[Ids, Lengths]:
        """See `Encoder`."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return joined([np.array(encoding.ids, np.uint32) for encoding in encodings])

    def ids_by_token(self) -> dict[str, int]:
        """See `Own`."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    def around(self) -> tuple[list[int], list[int]]:
        """See `Own`."""
        plain, whole = (
            self._tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True)
        )
        return between(plain, whole)

    def vocabulary(self) -> tuple[list[str], list[str]]:
        """See `Measure`."""
        size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        some = random.Random(0).sample(range(size), min(size, SOME_TOKENS))
        tokens = self._tokenizer.decode_batch([[number] for number in some])
        # A part of a character has no text of its own.
        whole = [token for token in tokens if token and "\ufffd" not in token]
        added = self._tokenizer.get_added_tokens_decoder().values()
        return whole, [token.content for token in added]


def load(spec: Spec) -> HuggingFace:
    """Read a tokenizer.json.

    Raises:
        InputError: the library does not know what is in it.
    """
    # A worker is one processor. And a process that has used the library's own threads complains on
    # the terminal at each child it starts.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        tokenizer = Tokenizer.from_file(str(spec.file))
    except Exception as error:  # the library raises no narrower one
        raise InputError(
            "A tokenizer.json cannot be read", where=spec.file,
            expected="one that the installed tokenizers library knows", got=error,
        ) from error  # fmt: skip
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return HuggingFace(tokenizer)
