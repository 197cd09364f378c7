"""A GGUF file's SentencePiece tokenizer of merges (Llama 2, Mistral) for `tokenizers`.

The file holds pieces and scores: of all neighbours that make a piece, those with the best score are
merged first. As ranked merges that is BPE; what no piece covers is spelt in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from megatron_bridge.errors import InputError
from megatron_bridge.sources.gguf_header import damaged, numbers
from megatron_bridge.sources.ranges import Ranges

if TYPE_CHECKING:
    import tokenizers

SPACE = "\u2581"
NORMAL, UNKNOWN = 1, 2
"""Types of pieces: what is merged, and what stands for all that is not known."""
LONGEST = 256
"""Of a piece, in characters; Llama's have 16, and the work grows with their square."""


def make(
    file: Ranges, facts: Mapping[str, Any], pieces: Sequence[str], types: Iterable[int]
) -> tokenizers.Tokenizer:
    """Return the tokenizer without its special tokens.

    Raises:
        InputError: no scores, or text is changed in a way that is not known before it is split.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = numbers(file, facts, "tokenizer.ggml.scores", len(pieces))
    if (longest := max(map(len, pieces), default=0)) > LONGEST:
        raise damaged(file, f"a piece of {longest} characters")
    for name in ("precompiled_charsmap", "remove_extra_whitespaces"):
        if facts.get(f"tokenizer.ggml.{name}"):
            raise InputError(
                "The GGUF file's tokenizer changes text in a way that is not supported",
                where=f"{file.name}, tokenizer.ggml.{name}",
                expected="none",
                got="one",
                fix="start from the model's Hugging Face folder",
            )
    types = list(types)
    unknown = [piece for piece, kind in zip(pieces, types, strict=True) if kind == UNKNOWN]
    normal = {p: s for p, s, kind in zip(pieces, scores, types, strict=True) if kind == NORMAL}
    made = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=_merges(normal),
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = bool(facts.get("tokenizer.ggml.add_space_prefix", True))
    steps = [normalizers.Prepend(SPACE)] if prefixed else []
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*back, *([decoders.Strip(" ", 1, 0)] if prefixed else [])])
    return made


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, the best score first.

    Of equal scores the leftmost pair is merged first, so that a run of spaces, whose pieces all
    have one score, grows from its beginning: a longer left piece comes first.
    """
    found = [
        (-score, -cut, cut - len(whole), whole[:cut], whole[cut:])
        for whole, score in scores.items()
        for cut in range(1, len(whole))
        if whole[:cut] in scores and whole[cut:] in scores
    ]
    return [(left, right) for *_, left, right in sorted(found)]
