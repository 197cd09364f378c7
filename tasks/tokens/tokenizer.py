"""From what names a tokenizer to what workers load, and the token that ends a document.

Ids are those of the text alone. Megatron-LM's HuggingFaceTokenizer puts the tokenizer's own special
tokens around each text, unless `--tokenizer-hf-no-include-special-tokens` (0.19); `Prepared.around`
has them, and GPT-2's and Qwen's tokenizers have none. Its other tokenizers add nothing.
`<|endoftext|>` in a text becomes the token, as in Megatron-Core's GPT2BPETokenizer since 0.16; the
older one, in Python, spelled it out. SentencePiece models are used as with
`--tokenizer-sentencepiece-legacy` off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tasks.core.errors import InputError
from tasks.core.tokenizer_files import sha256_of
from tasks.tokens import tokenizer_files
from tasks.tokens.encoders import Own, Spec, load

END_OF_DOCUMENT = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>")
"""GPT-2's and its many heirs', Llama 3's, DeepSeek's.

They come before `eos_token`, which in instruct models ends a *turn* (`<|im_end|>`).
"""

_PADDING = 128
"""Converted checkpoints round the vocabulary up to a multiple of this."""

_PROBES = ["The quick brown fox jumps over the lazy dog, 0123456789.", "天地玄黄宇宙洪荒日月盈昃"]
_DISTINCT = 6
"""A tokenizer that works makes at least so many different tokens of the probes."""


@dataclass(frozen=True)
class Prepared:
    """A tokenizer that is ready for workers.

    Attributes:
        spec: its own encoder.
        kind: what was read: the class that `AutoTokenizer` found, or the kind of file.
        size: how many ids it has.
        vocab_size: how many the model has, by config.json; `size` where there is no model.
        end_of_document: id; None where there is none, and none was asked for.
        end_of_document_token: its text.
        around: the special tokens that the tokenizer itself would put before a text and after it.
    """

    spec: Spec
    kind: str
    size: int
    vocab_size: int
    end_of_document: int | None
    end_of_document_token: str | None
    around: tuple[list[int], list[int]]

    def facts(self) -> dict[str, Any]:
        """For the record."""
        return {
            "end_of_document": self.end_of_document,
            "end_of_document_token": self.end_of_document_token,
            "vocab_size": self.vocab_size,
            "padded_vocab_size": -(-self.vocab_size // _PADDING) * _PADDING,
            "tokenizer": self.kind,
            "tokenizer_sha256": self.spec.sha256,
        }


def prepare(
    source: Path,
    out: Path,
    chosen: str | None = None,
    pattern: str | None = None,
    as_megatron: bool = False,
    must_end: bool = True,
) -> Prepared:
    """Write a tokenizer into a folder, as workers load it.

    Args:
        source: a model folder that `AutoTokenizer` loads; a tokenizer.json; a SentencePiece model;
            a `.tiktoken` file; a tekken.json, or the table that Megatron-LM's TikTokenizer reads;
            GPT-2's vocab.json beside its merges.txt, or the folder of both.
        out: a folder; gets tokenizer.json, tokenizer.model or `slow/`.
        chosen: the end-of-document token, where the rule shall not decide.
        pattern: how a tiktoken file's texts are split, where the file is not a known one.
        as_megatron: take the tokenizer's `eos_token`, as Megatron-LM does, before the rule.
        must_end: refuse a tokenizer without an end-of-document token.

    Raises:
        InputError: no tokenizer, none that makes tokens of texts, none for this model, or none with
            an end-of-document token.
    """
    read = tokenizer_files.read(source, out, pattern)
    spec = Spec(read.own, read.own, read.file, sha256_of(read.file))
    encoder = cast(Own, load(spec))
    _check_alive(encoder, source)
    vocabulary = encoder.ids_by_token()
    size = max(len(vocabulary), max(vocabulary.values()) + 1)
    vocab_size = _vocab_size(source) or size
    check_ids(vocabulary, vocab_size, source)
    chosen = chosen or (read.eos_token if as_megatron else None)
    token: str | None = None
    number: int | None = None
    try:
        token, number = end_of_document(vocabulary, read.eos_token, chosen)
    except InputError:
        if must_end:
            raise
    return Prepared(spec, read.kind, size, vocab_size, number, token, encoder.around())


def end_of_document(
    vocabulary: Mapping[str, int], eos_token: str | None, chosen: str | None = None
) -> tuple[str, int]:
    """Which token ends a document, and its id.

    Args:
        vocabulary: ids by token.
        eos_token: the tokenizer's, used where the vocabulary has no token made for documents.
        chosen: overrides the rule.

    Raises:
        InputError: there is no such token.
    """
    wanted = [chosen] if chosen is not None else [*END_OF_DOCUMENT, *filter(None, [eos_token])]
    for token in wanted:
        if token in vocabulary:
            return token, vocabulary[token]
    raise InputError(
        "The tokenizer has no end-of-document token", where="tokens.end_of_document",
        expected=f"one of {', '.join(wanted)} in its vocabulary",
        got=f"{len(vocabulary)} tokens, none of them",
        fix="name a token of its vocabulary in tokens.end_of_document",
    )  # fmt: skip


def check_ids(vocabulary: Mapping[str, int], vocab_size: int, where: Path) -> None:
    """Refuse a tokenizer with ids that the model has no embedding for.

    Raises:
        InputError: names the first such token.
    """
    outside = {token: number for token, number in vocabulary.items() if number >= vocab_size}
    if outside:
        token = min(outside, key=lambda name: outside[name])
        raise InputError(
            "The tokenizer has more ids than the model", where=where,
            expected=f"ids below the model's vocab_size {vocab_size}",
            got=f"{len(outside)} beyond, the first {token!r} with id {outside[token]}",
            fix="use the tokenizer that belongs to the model",
        )  # fmt: skip


def _check_alive(encoder: Own, source: Path) -> None:
    """Refuse a tokenizer without vocabulary: what transformers makes of files that it ignores."""
    distinct = len(set(encoder.encode(_PROBES)[0].tolist()))
    if distinct < _DISTINCT:
        raise InputError(
            "The tokenizer makes no tokens of a text", where=source,
            expected=f"at least {_DISTINCT} different ids for an English and a Chinese sentence",
            got=f"{distinct}: it is empty, or knows nothing but its unknown token",
            fix="name the folder or file that holds the tokenizer's vocabulary",
        )  # fmt: skip


def _vocab_size(source: Path) -> int | None:
    """The model's, where the source is its folder."""
    file = source / "config.json"
    if not source.is_dir() or not file.is_file():
        return None
    config = tokenizer_files.read_json(file)
    size = config.get("vocab_size", (config.get("text_config") or {}).get("vocab_size"))
    if size is not None and not isinstance(size, int):
        raise InputError(
            "The model does not say how many ids it has", where=file,
            expected="a number in vocab_size", got=repr(size), fix="correct the model's config",
        )  # fmt: skip
    return size
