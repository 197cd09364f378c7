"""Which encoder runs: a fast one only where its ids were found equal, in this run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from tasks.tokens.encoders import (
    Encoder,
    Ids,
    Lengths,
    Measure,
    Name,
    Spec,
    Unsuited,
    fuzz,
    load,
    unsuited,
)

FAST: tuple[Name, ...] = ("gigatoken", "tiktoken")
"""In the order in which they are tried."""

_BATCH = 32
_NOTHING = "nothing faster was found equal"
_SHOWN = 40


@dataclass(frozen=True)
class Choice:
    """What was chosen and why.

    Attributes:
        spec: for `load`.
        reason: one sentence.
        compared: by fast encoder, why it does not suit, or how many texts and bytes were compared
            and, if one differs, its text near the place (escaped) and that text's ids by both.
    """

    spec: Spec
    reason: str
    compared: dict[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """For the record: encoder, reason, compared."""
        return {
            "encoder": self.spec.encoder, "reason": self.reason, "compared": self.compared
        }  # fmt: skip


def choose(spec: Spec, sample: Iterable[str], fast: Sequence[Name] = FAST) -> Choice:
    """The first fast encoder whose ids equal the tokenizer's own on a sample and on a fuzz set.

    Args:
        spec: the tokenizer's own encoder, as `tokenizer.prepare` returns it.
        sample: texts from all over the corpus; some 1 % of it, and 2 MB at most, will do.
        fast: the encoders to try.
    """
    if spec.own == "slow" or not fast:
        return Choice(spec, _NOTHING)
    own = cast(Measure, load(spec))
    texts = [*fuzz.texts(*own.vocabulary()), *sample]
    size = sum(len(text.encode()) for text in texts)
    compared: dict[str, Any] = {}
    with ThreadPoolExecutor(1) as pool:
        # The own encoder is slow, but leaves the interpreter to the fast one, which loads then.
        running = pool.map(own.encode, _batches(texts))
        expected = functools.cache(lambda: list(running))
        for name in fast:
            try:
                encoder = load(dataclasses.replace(spec, encoder=name))
                difference = _difference(own, encoder, texts, expected())
            except Unsuited as error:
                compared[name] = str(error)
                continue
            compared[name] = {"texts": len(texts), "bytes": size, "difference": difference}
            if difference is None:
                reason = f"its ids equal those of {spec.own} on {len(texts)} texts"
                return Choice(dataclasses.replace(spec, encoder=name), reason, compared)
        pool.shutdown(cancel_futures=True)
    return Choice(spec, _NOTHING, compared)


def _batches(texts: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(texts), _BATCH):
        yield texts[start : start + _BATCH]


def _difference(
    own: Encoder, encoder: Encoder, texts: list[str], expected: list[tuple[Ids, Lengths]]
) -> dict[str, Any] | None:
    """The first text whose ids are not those expected."""
    with unsuited(f"{encoder.name} failed"):
        for batch, (ids, lengths) in zip(_batches(texts), expected, strict=True):
            got_ids, got_lengths = encoder.encode(batch)
            if np.array_equal(got_ids, ids) and np.array_equal(got_lengths, lengths):
                continue
            for text in batch:
                if _ids(encoder, text) != _ids(own, text):
                    return _shown(text, own, encoder)
            raise Unsuited("its ids depend on the texts beside a text")
    return None


def _shown(text: str, own: Encoder, fast: Encoder) -> dict[str, Any]:
    """Where a text's ids begin to differ."""
    same, stop = 0, len(text)
    while stop - same > 1:
        middle = (same + stop) // 2
        if _ids(own, text[:middle]) == _ids(fast, text[:middle]):
            same = middle
        else:
            stop = middle
    near = text[max(0, stop - _SHOWN) : stop + _SHOWN // 2]
    return {"text": ascii(near)[1:-1], "own": _ids(own, near), "fast": _ids(fast, near)}


def _ids(encoder: Encoder, text: str) -> list[int]:
    return cast(list[int], encoder.encode([text])[0].tolist())
