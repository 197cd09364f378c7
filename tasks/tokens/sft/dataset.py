"""Files of chat rows to one packed dataset."""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from megatron_bridge.launch import pool
from tasks.core.errors import InputError
from tasks.tokens import lines, tokenizer
from tasks.tokens.indexed import best_dtype
from tasks.tokens.merge import SUFFIXES, require_absent, require_name
from tasks.tokens.sft import files, template
from tasks.tokens.sft.encode import COUNTED, Chat, Rules, encode
from tasks.tokens.sft.packing import pack

_SHOWN = 20


@dataclass
class _Tally:
    """Rows set aside by reason, and what is counted of the others."""

    aside: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTED, 0)))


def make(
    sources: list[Path],
    prefix: Path,
    model: Path,
    progress: Callable[..., None],
    workers: int,
    *,
    date: datetime.date | None = None,
    **rules: Any,
) -> dict[str, Any]:
    """Write a dataset by a model's tokenizer and chat template; see `write`.

    Args:
        sources: JSON lines, one conversation each.
        prefix: path without `.bin` and `.idx`.
        model: a Hugging Face folder.
        progress: see `write`.
        workers: see `write`.
        date: see `template.load`.
        rules: sequence_length, loss, too_long; see `encode.Rules`.

    Returns:
        see `write`.

    Raises:
        InputError: see `write`; or no tokenizer, none with a chat template, or none whose tokens
            know their characters.
        ConfigError: see `template.load`; or a dataset is there.
    """
    progress(0, 0, note="loading the tokenizer")
    require_name(prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    # What has a mask and no record is the half of a command that was killed.
    half = files.beside(prefix, "mask.bin").exists()
    whole = [] if half else [Path(f"{prefix}{suffix}") for suffix in SUFFIXES]
    require_absent([*whole, files.beside(prefix, "tokens.json")])
    chat_template = template.load(model, date)
    place = files.beside(prefix, "tokenizer.json")
    with tempfile.TemporaryDirectory(dir=prefix.parent) as folder:
        prepared = tokenizer.prepare(model, Path(folder))
        if prepared.spec.encoder != "hugging_face":
            raise InputError(
                "The tokenizer does not tell which characters a token holds", where=model,
                expected="one with a fast form, a tokenizer.json", got=prepared.kind,
            )  # fmt: skip
        prepared.spec.file.replace(place)
    facts = prepared.facts()
    decided = Rules(place, facts["tokenizer_sha256"], facts["vocab_size"], chat_template, **rules)
    return write(sources, prefix, decided, facts["end_of_document"], workers, progress)


def write(
    sources: list[Path],
    prefix: Path,
    rules: Rules,
    pad: int,
    workers: int,
    progress: Callable[..., None],
) -> dict[str, Any]:
    """Write a dataset, the same bytes for any number of workers.

    A pack is never longer than `rules.sequence_length`, and a conversation never in two. At most
    a window of packs is in memory. `PREFIX_documents.jsonl` says where each conversation came
    from, `PREFIX_set_aside.jsonl` which rows gave none. `PREFIX_tokens.json` (what is returned)
    comes last: without it nothing is finished.

    Args:
        sources: JSON lines, one conversation each.
        prefix: path without `.bin` and `.idx`.
        rules: see `encode`.
        pad: the id that fills up a sample when it is read.
        workers: processes.
        progress: called with bytes done and in all.

    Returns:
        conversations, packs, tokens, loss_tokens, fill (tokens by the room in all packs),
        set_aside (rows), reasons (the commonest, with rows), and what was counted: answers,
        answers_without_end, straddling_tokens, truncated.

    Raises:
        InputError: no conversation was left.
    """
    files.beside(prefix, "tokens.json").unlink(missing_ok=True)
    tally = _Tally()
    with (
        files.Writer(prefix, best_dtype(rules.vocab_size)) as writer,
        open(files.beside(prefix, "documents.jsonl"), "w", encoding="utf-8") as listed,
        open(files.beside(prefix, "set_aside.jsonl"), "w", encoding="utf-8") as refused,
    ):
        chats = _chats(sources, rules, workers, progress, refused, tally)
        for group in pack(chats, rules.sequence_length):
            _list(listed, writer, group)
            writer.add(group)
    told = _told(writer, rules, pad, tally)
    if not writer.conversations:
        reasons = ", ".join(f"{reason} ({n})" for reason, n in told["reasons"].items())
        raise InputError(
            "No conversation is left", where=", ".join(map(str, sources)),
            expected="rows with messages that the chat template takes", got=reasons or "no rows",
            fix=f"see {prefix.name}_set_aside.jsonl for each row",
        )  # fmt: skip
    text = json.dumps(told, indent=1) + "\n"
    files.beside(prefix, "tokens.json").write_text(text, encoding="utf-8")
    return told


def _told(writer: files.Writer, rules: Rules, pad: int, tally: _Tally) -> dict[str, Any]:
    return {
        "conversations": writer.conversations,
        "packs": writer.packs,
        "tokens": writer.tokens,
        "loss_tokens": writer.loss_tokens,
        "fill": round(writer.tokens / max(writer.packs * rules.sequence_length, 1), 4),
        "set_aside": tally.aside.total(),
        "reasons": dict(tally.aside.most_common(_SHOWN)),
        **tally.counts,
        "sequence_length": rules.sequence_length,
        "loss": rules.loss,
        "too_long": rules.too_long,
        "dtype": best_dtype(rules.vocab_size).name,
        "pad": pad,
        "vocab_size": rules.vocab_size,
        "tokenizer_sha256": rules.sha256,
        "template_sha256": rules.template.sha256,
    }


def _chats(
    sources: list[Path],
    rules: Rules,
    workers: int,
    progress: Callable[..., None],
    refused: IO[str],
    tally: _Tally,
) -> Iterator[Chat]:
    """Conversations in the order of the rows; the others are written and counted."""
    total = sum(file.stat().st_size for file in sources)
    here, there = itertools.tee(lines.blocks(sources))
    results = pool.run(functools.partial(encode, rules), there, workers)
    for block, result in zip(here, results, strict=True):
        refused.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in result.set_aside)
        tally.aside.update(row["reason"] for row in result.set_aside)
        tally.counts.update(result.counts)
        yield from result.chats
        progress(block.read, total, unit="bytes", note=block.file.name)


def _list(listed: IO[str], writer: files.Writer, group: list[Chat]) -> None:
    for number, chat in enumerate(group, writer.conversations):
        sizes = {"tokens": len(chat.ids), "loss_tokens": int(chat.mask.sum())}
        entry = {"conversation": number, "pack": writer.packs, **chat.note, **sizes}
        listed.write(json.dumps(entry, ensure_ascii=False) + "\n")
