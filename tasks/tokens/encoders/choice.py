"""Which encoder runs: a fast one only where its ids were found equal, in this run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from tasks.tokens.encoders import Spec


@dataclass(frozen=True)
class Choice:
    """What was chosen and why.

    Attributes:
        spec: for `load`.
        reason: one sentence.
        compared: by fast encoder: texts, bytes, differences, and the first text that differs.
    """

    spec: Spec
    reason: str
    compared: dict[str, dict[str, Any]] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """For the record: encoder, reason, compared."""
        return {
            "encoder": self.spec.encoder,
            **{k: asdict(self)[k] for k in ("reason", "compared")},
        }


def choose(spec: Spec, sample: Iterable[str]) -> Choice:
    """The fastest encoder whose ids equal the tokenizer's own on a sample and on a fuzz set.

    Args:
        spec: the tokenizer's own encoder, as `tokenizer.prepare` returns it.
        sample: texts from all over the corpus; about 1 MB will do.
    """
    return Choice(spec, "no faster encoder for this tokenizer was tried")
