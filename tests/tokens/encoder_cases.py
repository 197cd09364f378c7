"""Small tokenizers, trained in a second, of the kinds that models have; and texts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

_ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    text
    for name in ("README.md", "README.zh-CN.md")
    for text in (_ROOT / name).read_text(encoding="utf-8").split("\n\n")
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SCHEMES = ("gpt2", "qwen")


def train(scheme: str) -> Tokenizer:
    """A byte-level BPE with the splitting of GPT-2, or with Qwen's and its normal form."""
    tokenizer = Tokenizer(models.BPE())
    step: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if scheme == "qwen":
        tokenizer.normalizer = normalizers.NFC()
        step = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(QWEN), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.pre_tokenizer = step
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=1200,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(DOCUMENTS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    return tokenizer


def sha256(file: Path) -> str:
    """Of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
