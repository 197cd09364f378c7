"""gigatoken: some forty times as fast as `tokenizers` on one core.

It brings its own splitting of texts, Unicode tables included, so it is used only through `choose`.
Its batches come as awkward arrays, whose import takes 0.3 s and 50 MiB a process; one text at a
time they are plain numpy, and as fast from 2 kB a text on. It remembers every word it has met, some
300 MiB for 45 MB of words that were never there before, so it is made anew when it has grown.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.tokens.encoders import Spec, Unsuited, unsuited
from tasks.tokens.encoders.routing import Routed, any_of

GROWTH = 40 << 20
"""Bytes of memory that it may grow by; making it anew takes 0.1 s for 50,000 tokens."""

CHECKED = 1 << 20
"""Characters between two looks at the memory."""


def load(spec: Spec) -> Routed:
    """Read a tokenizer.json or a SentencePiece model.

    Raises:
        Unsuited: the package is missing, or it does not know this kind of tokenizer.
    """
    try:
        import gigatoken
        from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json
    except ImportError as error:
        raise Unsuited("the package gigatoken is not installed") from error
    if spec.own == "slow":
        raise Unsuited("there is no file that gigatoken reads")
    data, apart = spec.file.read_bytes(), None
    # Within a string of JSON the quotes would have backslashes. SentencePiece brings its tables.
    normalized = spec.own == "hugging_face" and not re.search(rb'"normalizer":\s*null', data)
    with unsuited("gigatoken cannot read it"):
        if spec.own == "sentencepiece":
            converted = sentencepiece_to_tokenizer_json(data)
            # To SentencePiece a control piece in a text is text, and no space goes after a piece
            # that the user defined.
            apart = any_of(token["content"] for token in json.loads(converted)["added_tokens"])
            data = converted.encode()
        bounded = _Bounded(lambda: gigatoken.Tokenizer.from_json(data).backend)
    return Routed("gigatoken", bounded, spec, normalized, apart)


class _Bounded:
    """Encodes texts one by one, in memory that does not grow with them (on Linux)."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._backend: Any = None
        self._left = self._before = 0
        self._renew()

    def __call__(self, text: str) -> NDArray[np.uint32]:
        self._left -= len(text)
        if self._left < 0:
            self._left = CHECKED
            if _resident() - self._before > GROWTH:
                self._renew()
        ids: NDArray[np.uint32] = self._backend.encode(text)
        return ids

    def _renew(self) -> None:
        self._backend = None  # the old one's memory first
        self._backend = self._make()
        self._left, self._before = CHECKED, _resident()


def _resident() -> int:
    """Bytes of memory that this process holds now; 0 where there is no /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
