"""JSON lines to indexed datasets, byte for byte as Megatron-LM's `tools/preprocess_data.py`.

Where that tool stops at a line that is no JSON or has no such text, this one sets the line aside,
counts it, and goes on.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.core.errors import ConfigError, InputError
from tasks.tokens import lines, tokenizer
from tasks.tokens.encode import Job
from tasks.tokens.encoders.choice import choose
from tasks.tokens.indexed import code_of
from tasks.tokens.merge import SUFFIXES, Merged, lock, require_absent, require_name
from tasks.tokens.shards import Shards, Totals

_MOVED = "moved.json"


@dataclass(frozen=True)
class Options:
    """What the command line says; the names are those of Megatron-LM's tool.

    Attributes:
        tokenizer: what `tokenizer.prepare` takes.
        json_keys: fields of a line that hold its texts; a dataset each.
        append_eod: an end-of-document after each document that has any tokens.
        split_sentences: each sentence a sequence of its own, by nltk's English Punkt.
        end_of_document: the token; without it the tokenizer's `eos_token`, as Megatron-LM's.
        special_tokens: the tokenizer's own around each text, as Megatron-LM's puts them.
        pattern: see `tokenizer.prepare`.
    """

    tokenizer: Path
    json_keys: tuple[str, ...] = ("text",)
    append_eod: bool = False
    split_sentences: bool = False
    end_of_document: str | None = None
    special_tokens: bool = True
    pattern: str | None = None


def preprocess(
    files: Sequence[Path],
    out: Path,
    options: Options,
    workers: int,
    progress: Callable[..., None],
) -> dict[str, Any]:
    """Write `OUT_KEY_document.bin` and `.idx` (with sentences `OUT_KEY_sentence`) for each key.

    Beside them lie `OUT_tokens.json` (what is returned) and, where lines were set aside,
    `OUT_set_aside.jsonl`. Killed in the middle, the same call goes on.

    Args:
        files: JSON lines, plain or compressed, in order.
        out: prefix.
        options: what decides on the bytes.
        workers: processes at most.
        progress: called as `progress(done, total, unit="bytes", note=…)`.

    Returns:
        datasets (by key: prefix, documents, sequences, tokens, bytes, dtype), set_aside, and the
        facts on tokenizer and encoder.

    Raises:
        ConfigError: an output is there already.
        InputError: a file or the tokenizer cannot be read, or no line is a document.
        RetryableError: a worker died, or the same command is running.
    """
    _check_keys(options.json_keys)
    require_name(out)
    level = "sentence" if options.split_sentences else "document"
    prefixes = {key: f"{out.name}_{key}_{level}" for key in options.json_keys}
    names = [f"{prefix}{suffix}" for prefix in prefixes.values() for suffix in SUFFIXES]
    names += [f"{out.name}_set_aside.jsonl", f"{out.name}_tokens.json"]
    with _work(out.with_name(f".{out.name}.tokenize"), names) as work:
        job, facts = _job(files, options, work)
        shards = Shards(work / "shards", files, job)
        totals = shards.build(workers, progress)
        *_, aside, record = (work / name for name in names)
        shards.gather("set_aside.jsonl", aside)
        _require_documents(totals, aside, files, options.json_keys)
        datasets = {key: shards.assemble(key, work / name) for key, name in prefixes.items()}
        told = {key: _told(out.with_name(prefixes[key]), datasets[key]) for key in datasets}
        facts = {"datasets": told, "set_aside": totals.set_aside, **facts}
        record.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        if not totals.set_aside:
            names.remove(aside.name)
        _move_out(work, names)
    return facts


def _job(files: Sequence[Path], options: Options, work: Path) -> tuple[Job, dict[str, Any]]:
    folder = work / "tokenizer"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    prepared = tokenizer.prepare(
        options.tokenizer, folder, options.end_of_document, options.pattern,
        as_megatron=True, must_end=options.append_eod or options.end_of_document is not None,
    )  # fmt: skip
    choice = choose(prepared.spec, lines.texts(lines.sample(files), options.json_keys))
    before, after = prepared.around if options.special_tokens else ([], [])
    end_of_document = prepared.end_of_document if options.append_eod else None
    job = Job(
        choice.spec, code_of(prepared.size), end_of_document, options.json_keys,
        options.split_sentences, (tuple(before), tuple(after)),
    )  # fmt: skip
    told = {"append_eod": options.append_eod, "around": [before, after]}
    return job, {**told, **prepared.facts(), **choice.facts()}


def _told(prefix: Path, merged: Merged) -> dict[str, Any]:
    facts = asdict(merged)
    del facts["datasets"], facts["multimodal"]
    return {"prefix": str(prefix), **facts}


def _check_keys(keys: Sequence[str]) -> None:
    if not keys or len(set(keys)) < len(keys) or any("/" in key or not key for key in keys):
        raise ConfigError(
            "The keys are no names of fields", where="--json-keys",
            expected="one or more names, each once, without a slash", got=",".join(keys),
        )  # fmt: skip


def _require_documents(
    totals: Totals, aside: Path, files: Sequence[Path], keys: Sequence[str]
) -> None:
    if not totals.set_aside or any(found["documents"] for found in totals.datasets.values()):
        return
    with open(aside, encoding="utf-8") as listed:
        reason = json.loads(next(listed))["reason"]
    raise InputError(
        "No line is a document", where=", ".join(map(str, files)),
        expected=f"JSON lines with a text in the field {' and '.join(keys)}",
        got=f"{totals.set_aside} lines set aside, the first for: {reason}",
        fix="name other files, or the fields that hold texts in --json-keys",
    )  # fmt: skip


@contextmanager
def _work(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """A folder for one command at a time; it stays where the same command can go on."""
    fresh = not folder.exists()
    if fresh:
        require_absent(map(folder.with_name, names))
        folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as held:
        lock(held)
        _take_back(folder)
        require_absent(map(folder.with_name, names))
        try:
            yield folder
        except (ConfigError, InputError):
            # What an earlier command has encoded is not lost by a mistake in this one.
            if fresh:
                shutil.rmtree(folder)
            raise
        shutil.rmtree(folder)


def _move_out(work: Path, names: Sequence[str]) -> None:
    """Move what is whole to the folder above."""
    listed = work / f"{_MOVED}.new"
    listed.write_text(json.dumps(names), encoding="utf-8")
    os.rename(listed, work / _MOVED)
    for name in names:
        os.rename(work / name, work.with_name(name))


def _take_back(work: Path) -> None:
    """Remove what a command that was killed had put together, and moved out if it was not all."""
    moved = work / _MOVED
    names = json.loads(moved.read_bytes()) if moved.is_file() else []
    left = {name for name in names if (work / name).exists()}
    for name in set(names) - left if left else ():
        work.with_name(name).unlink(missing_ok=True)
    # Datasets are short work, and half of one is of no use.
    for file in work.iterdir():
        if file.name != "lock" and file.is_file():
            file.unlink()
