"""Tokenizers given as tokens and their ranks: tiktoken's files, Mistral's, Megatron-LM's.

A `.tiktoken` file has a token and its rank on each line (Llama 3 calls it tokenizer.model). It does
not say how texts are split, nor which tokens are special; for published files that is known by
their SHA-256, for others it has to be said. A table of ranks in JSON is what Mistral's tekken.json
holds, and, as a bare list, what Megatron-LM's TikTokenizer reads.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tasks.core.errors import InputError
from tasks.core.fingerprint import sha256_file
from tasks.tokens.encoders import byte_level

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD, _TRIPLES, _DIGIT = r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}{1,3}", r"\p{N}"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n%s]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"

PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": f"{_ENDINGS}|{_WORD}|{_TRIPLES}|{_REST % ''}",
    "qwen": f"{_ENDINGS}|{_WORD}|{_DIGIT}|{_REST % ''}",
    "o200k": f"{_CASED % ((_ENDINGS + '?',) * 2)}|{_TRIPLES}|{_REST % '/'}",
    # Megatron-LM's --tiktoken-pattern; v2 is its default.
    "v1": rf"{_WORD}|{_DIGIT}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "v2": f"{_CASED % ('', '')}|{_DIGIT}|{_REST % '/'}",
}
"""How published tokenizers split texts, by names for it."""


@dataclass(frozen=True)
class _Scheme:
    pattern: str
    special: Mapping[str, int]
    nfc: bool = False


_DOCUMENT = "<|endoftext|>"
_QWEN = (_DOCUMENT, "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
_CL100K = {
    _DOCUMENT: 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259,
    "<|fim_suffix|>": 100260, "<|endofprompt|>": 100276,
}  # fmt: skip
_LLAMA3 = {
    "<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|start_header_id|>": 128006,
    "<|end_header_id|>": 128007, "<|eot_id|>": 128009,
}  # fmt: skip

_KNOWN = {
    # The digests of OpenAI's files are those in tiktoken_ext/openai_public.py.
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": _Scheme(
        "gpt2", {_DOCUMENT: 50256}
    ),
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": _Scheme(
        "gpt2", {_DOCUMENT: 50256}
    ),
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": _Scheme("cl100k", _CL100K),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": _Scheme(
        "o200k", {_DOCUMENT: 199999, "<|endofprompt|>": 200018}
    ),
    # Qwen's and Qwen 2's vocabulary, as dashscope 2.0.2 holds it (tokenizers/qwen_tokenizer.py).
    "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186": _Scheme(
        "qwen", {token: 151643 + place for place, token in enumerate(_QWEN)}, nfc=True
    ),
    # Llama 3 to 3.3, tokenizer.model.
    "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55": _Scheme("cl100k", _LLAMA3),
}


def is_tiktoken(head: bytes) -> bool:
    """True for the first bytes of a file of tokens in base64 and their ranks."""
    token, _, rank = head.partition(b"\n")[0].strip().partition(b" ")
    try:
        return bool(base64.b64decode(token, validate=True)) and rank.isdigit()
    except ValueError:
        return False


def from_tiktoken(file: Path, pattern: str | None) -> Tokenizer:
    """The tokenizer of a `.tiktoken` file.

    Args:
        file: the file.
        pattern: how texts are split: one of `PATTERNS`, or a regular expression. Not asked for
            where the file is a published one. With it `<|endoftext|>` gets the next id.

    Raises:
        InputError: the file is not known and there is no pattern, or a line is no token and rank.
    """
    try:
        lines = [line.split() for line in file.read_bytes().splitlines() if line.strip()]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except ValueError as error:
        raise InputError(
            "A tiktoken file cannot be read", where=file,
            expected="a token in base64 and its rank on each line", got=error,
        ) from error  # fmt: skip
    scheme = _KNOWN.get(sha256_file(file))
    if pattern is not None:
        scheme = _Scheme(pattern, {_DOCUMENT: max(ranks.values()) + 1})
    if scheme is None:
        raise InputError(
            "A tiktoken file does not say how texts are split, and this is no file we know",
            where=file, expected="a pattern beside it", got=f"{len(ranks)} tokens and no pattern",
            fix=f"name the pattern: {', '.join(PATTERNS)}, or a regular expression",
        )  # fmt: skip
    return _build(file, ranks, scheme)


def from_table(file: Path, table: Any, pattern: str | None) -> Tokenizer:
    """The tokenizer of a tekken.json, or of the list that Megatron-LM's TikTokenizer reads.

    Special tokens have the first ids (Megatron's defaults: 1,000 of them, 131,072 ids in all).

    Args:
        file: for messages.
        table: what it holds.
        pattern: as for `from_tiktoken`; `v2` when left out, as in Megatron-LM.

    Raises:
        InputError: it holds no such table.
    """
    try:
        if isinstance(table, list):
            named = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"]
            first, size, entries = 1000, 1 << 17, table
        else:
            config, entries = table["config"], table["vocab"]
            first, size = config["default_num_special_tokens"], config["default_vocab_size"]
            pattern = pattern or config["pattern"]
            special = sorted(table.get("special_tokens") or [], key=lambda token: token["rank"])
            named = [token["token_str"] for token in special]
        named += [f"<SPECIAL_{number}>" for number in range(len(named), first)]
        ranks = {
            base64.b64decode(entry["token_bytes"]): int(entry["rank"]) + first
            for entry in entries[: size - first]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "A table of ranks cannot be read", where=file,
            expected="tokens with rank and token_bytes, as in Mistral's tekken.json", got=error,
        ) from error  # fmt: skip
    special_ids = {token: number for number, token in enumerate(named)}
    return _build(file, ranks, _Scheme(pattern or "v2", special_ids))


def _build(file: Path, ranks: Mapping[bytes, int], scheme: _Scheme) -> Tokenizer:
    # All ways to make a token of two, each at the token's rank: what tiktoken merges by.
    merges = sorted(
        (rank, ranks[token[:cut]], ranks[token[cut:]], cut, token)
        for token, rank in ranks.items()
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    )
    spelled = {token: byte_level.spell(token) for token in ranks}
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()} | dict(scheme.special)
    pairs = [(spelled[token[:cut]], spelled[token[cut:]]) for *_, cut, token in merges]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=True))
    if scheme.nfc:
        tokenizer.normalizer = normalizers.NFC()
    try:
        split = Regex(PATTERNS.get(scheme.pattern, scheme.pattern))
    except Exception as error:  # the library raises no narrower one
        raise InputError(
            "The pattern that splits texts is no regular expression", where=file,
            expected=f"one of {', '.join(PATTERNS)}, or a regular expression",
            got=f"{scheme.pattern}: {error}", fix="correct it",
        ) from error  # fmt: skip
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(split, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in scheme.special]
    )
    return tokenizer
