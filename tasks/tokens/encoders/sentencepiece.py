"""SentencePiece models through their own library, as Megatron-LM's `SentencePieceTokenizer` does.

Control pieces (`</s>`) in a text are text; user-defined pieces become themselves.
"""

from __future__ import annotations

import random

import sentencepiece

from tasks.tokens.encoders import SOME_TOKENS, Ids, Lengths, Name, Spec, joined


class SentencePiece:
    """See `Encoder`."""

    name: Name = "sentencepiece"

    def __init__(self, processor: sentencepiece.SentencePieceProcessor) -> None:
        self._processor = processor

    def encode(self, texts: list[str]) -> tuple[Ids, Lengths]:
        """See `Encoder`."""
        return joined([self._processor.encode_as_numpy(text) for text in texts])

    def ids_by_token(self) -> dict[str, int]:
        """See `Own`."""
        size = self._processor.get_piece_size()
        return {self._processor.id_to_piece(number): number for number in range(size)}

    def around(self) -> tuple[list[int], list[int]]:
        """See `Own`; the library adds nothing unless told to."""
        return [], []

    def vocabulary(self) -> tuple[list[str], list[str]]:
        """See `Measure`."""
        processor = self._processor
        size = processor.get_piece_size()
        some = random.Random(0).sample(range(size), min(size, SOME_TOKENS))
        plain = [number for number in some if not processor.is_byte(number)]
        control = [number for number in range(size) if processor.is_control(number)]
        pieces = [processor.id_to_piece(number) for number in [*plain, *control]]
        texts = [piece.replace("\u2581", " ") for piece in pieces]
        return texts[: len(plain)], texts[len(plain) :]


def load(spec: Spec) -> SentencePiece:
    """Read a SentencePiece model."""
    return SentencePiece(sentencepiece.SentencePieceProcessor(model_file=str(spec.file)))
