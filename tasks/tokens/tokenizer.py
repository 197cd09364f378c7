"""The model's tokenizer as one file, and the token that ends a document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.core.fingerprint import sha256_file

END_OF_DOCUMENT = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>")
"""GPT-2's and its many heirs', Llama 3's, DeepSeek's.

They come before `eos_token`, which in instruct models ends a *turn* (`<|im_end|>`).
"""

_PADDING = 128
"""Converted checkpoints round the vocabulary up to a multiple of this."""


def prepare(folder: Path, out: Path, chosen: str | None = None) -> dict[str, Any]:
    """Write the tokenizer that `AutoTokenizer` makes of a model folder as one tokenizer.json.

    Args:
        folder: the model's.
        out: the file to write; neither padding nor truncation is in it.
        chosen: the end-of-document token, where the rule shall not decide.

    Returns:
        end_of_document (id), end_of_document_token, vocab_size (config.json's),
        padded_vocab_size, tokenizer_sha256 (of the file written).

    Raises:
        InputError: no tokenizer, none for this model, or none with an end-of-document token.
    """
    eos_token = _write(folder, out)
    vocabulary = Tokenizer.from_file(str(out)).get_vocab(with_added_tokens=True)
    vocab_size = int(json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    check_ids(vocabulary, vocab_size, folder)
    token, number = end_of_document(vocabulary, eos_token, chosen)
    return {
        "end_of_document": number,
        "end_of_document_token": token,
        "vocab_size": vocab_size,
        "padded_vocab_size": -(-vocab_size // _PADDING) * _PADDING,
        "tokenizer_sha256": sha256_file(out),
    }


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


def _write(folder: Path, out: Path) -> str | None:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (ValueError, OSError) as error:
        raise InputError(
            "The model's tokenizer cannot be loaded", where=folder,
            expected="a tokenizer.json that transformers reads", got=error,
            fix="add the tokenizer's files to the model folder",
        ) from error  # fmt: skip
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InputError(
            "The model's tokenizer has no fast form", where=folder,
            expected="a tokenizer.json", got=type(tokenizer).__name__,
        )  # fmt: skip
    backend.no_padding()
    backend.no_truncation()
    out.write_text(backend.to_str(pretty=True), encoding="utf-8")
    eos: str | None = tokenizer.eos_token
    return eos
