"""A GGUF file's tokenizer as the files that `AutoTokenizer` loads, made with `tokenizers` alone.

`tokenizer.ggml.pre` names the rule by which text is split before merges (llama.cpp's
src/llama-vocab.cpp); transformers 5.24 splits every GGUF tokenizer by GPT-2's, so that ids differ
wherever the model's own rule does (SmolLM2: each digit by itself, so two spaces before a digit are
one token).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge.errors import InputError
from megatron_bridge.sources import gguf_config, gguf_sentencepiece
from megatron_bridge.sources.gguf_header import damaged, numbers
from megatron_bridge.sources.ranges import Ranges

if TYPE_CHECKING:
    import tokenizers

Facts = Mapping[str, Any]

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens that are found in text before it is split."""
_PIECES = "llama"
"""llama.cpp's name of SentencePiece's merges; these have no rule, and begin with a token."""


@dataclass(frozen=True)
class Rule:
    """How a tokenizer treats text; the first three are for byte-level BPE."""

    pattern: str | None = None
    """Splits text; GPT-2's own without one."""
    digits: bool = False
    """Each digit is split off first."""
    nfc: bool = False
    ignore_merges: bool = False
    """A word of the vocabulary is one token, whatever its merges."""
    add_bos: bool = False
    """Unless the file says otherwise."""


RULES: Mapping[str, Rule] = {
    "gpt-2": Rule(),
    "smollm": Rule(digits=True),
    "qwen2": Rule(_WORDS % "", nfc=True),
    "llama-bpe": Rule(_WORDS % "{1,3}", ignore_merges=True, add_bos=True),
}
"""By `tokenizer.ggml.pre`."""


def write(file: Ranges, facts: Facts, config: Mapping[str, Any], folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, generation_config.json and the chat template.

    Raises:
        InputError: the tokenizer is of another kind, splits text by an unknown rule, or its parts
            do not fit.
    """
    kind, pre = facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.pre")
    rule = RULES.get(pre) if kind == "gpt2" and isinstance(pre, str) else None
    rule = Rule(add_bos=True) if kind == _PIECES else rule
    if rule is None:
        raise InputError(
            "The GGUF file's tokenizer is not supported",
            where=file.name,
            expected=f"tokenizer.ggml.model gpt2 with .pre {', '.join(RULES)}; or {_PIECES}",
            got=f"{kind} with {pre}",
            fix="start from the model's Hugging Face folder",
        )
    tokens = _texts(file, facts, "tokens")
    if len(tokens) > config["vocab_size"] or len(set(tokens)) != len(tokens):
        raise damaged(
            file,
            f"{len(tokens)} tokens, {len(set(tokens))} of them different, for "
            f"{config['vocab_size']} rows of the embedding",
        )
    for name, number in gguf_config.ids(facts).items():
        if not 0 <= number < len(tokens):
            raise damaged(file, f"{name} {number} of {len(tokens)} tokens")
    made = _tokenizer(file, facts, rule, tokens)
    made.save(str(folder / "tokenizer.json"))
    for name, content in (
        ("tokenizer_config.json", _config(facts, config, tokens)),
        ("generation_config.json", gguf_config.generation(config)),
    ):
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")
    template = facts.get("tokenizer.chat_template")
    if isinstance(template, str):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _tokenizer(file: Ranges, facts: Facts, rule: Rule, tokens: list[str]) -> tokenizers.Tokenizer:
    from tokenizers import AddedToken

    types = [gguf_sentencepiece.NORMAL] * len(tokens)
    if facts.get("tokenizer.ggml.token_type") is not None:
        types = numbers(file, facts, "tokenizer.ggml.token_type", len(tokens))
    if facts["tokenizer.ggml.model"] == _PIECES:
        made = gguf_sentencepiece.make(file, facts, tokens, types)
    else:
        made = _byte_level(file, facts, rule, tokens)
    for kinds, special in (
        ({_CONTROL, gguf_sentencepiece.UNKNOWN}, True),
        ({_USER_DEFINED}, False),
    ):
        added = [token for token, own in zip(tokens, types, strict=True) if own in kinds]
        made.add_tokens([AddedToken(t, special=special, normalized=False) for t in added])
    made.post_processor = _around(facts, rule, tokens)
    return made


def _byte_level(file: Ranges, facts: Facts, rule: Rule, tokens: list[str]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    merges = [tuple(merge.split(" ")) for merge in _texts(file, facts, "merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    unfit = [m for m in merges if len(m) != 2 or not {*m, "".join(m)} <= vocabulary.keys()]
    if unfit:
        raise damaged(file, f"{len(unfit)} merges of unknown tokens, such as {unfit[0]}")
    made = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges,  # type: ignore[arg-type]  # of two each, as was seen
            ignore_merges=rule.ignore_merges,
            continuing_subword_prefix="",
            end_of_word_suffix="",
        )
    )
    if rule.nfc:
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = _splitter(rule)
    made.decoder = decoders.ByteLevel()
    return made


def _splitter(rule: Rule) -> tokenizers.pre_tokenizers.PreTokenizer:
    from tokenizers import Regex, pre_tokenizers

    steps: list[Any] = []
    if rule.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if rule.pattern:
        steps.append(pre_tokenizers.Split(Regex(rule.pattern), "isolated"))
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not rule.pattern)
    return pre_tokenizers.Sequence([*steps, as_bytes]) if steps else as_bytes


def _around(facts: Facts, rule: Rule, tokens: list[str]) -> Any:
    """What is put before and behind a text."""
    from tokenizers import processors

    known = gguf_config.ids(facts)
    wanted = {
        "bos": facts.get("tokenizer.ggml.add_bos_token", rule.add_bos),
        "eos": facts.get("tokenizer.ggml.add_eos_token", False),
    }
    found = {
        role: (tokens[number], number)
        for role, add in wanted.items()
        if add and (number := known.get(f"{role}_token_id")) is not None
    }
    before, behind = ([found[role][0]] if role in found else [] for role in ("bos", "eos"))
    return processors.TemplateProcessing(
        single=[*before, "$A", *behind],
        pair=[*before, "$A", *behind, *(f"{token}:1" for token in before), "$B:1",
              *(f"{token}:1" for token in behind)],
        special_tokens=list(found.values()),
    )  # fmt: skip


def _config(facts: Facts, config: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    special = {
        name.removesuffix("_id"): tokens[number]
        for name, number in sorted(gguf_config.ids(facts).items())
    }
    return {
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        # The name that transformers 4 and 5 both know; 5 writes one that 4 refuses.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
    }


def _texts(file: Ranges, facts: Facts, name: str) -> list[str]:
    value = facts.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list):
        raise damaged(file, f"tokenizer.ggml.{name} that is no list of texts")
    return value
