"""JSON lines to indexed datasets, byte for byte as Megatron-LM's `tools/preprocess_data.py`.

Where that tool stops at a line that is no JSON or has no such text, this one sets the line aside,
counts it, and goes on.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.core.errors import ConfigError, InputError, RetryableError
from tasks.tokens import lines, tokenizer
from tasks.tokens.encode import Job
from tasks.tokens.encoders.choice import choose
from tasks.tokens.indexed import code_of
from tasks.tokens.merge import Merged, publish, require_absent
from tasks.tokens.shards import Shards


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
        InputError: a file or the tokenizer cannot be read.
        RetryableError: a worker died, or the same command is running.
    """
    _check_keys(options.json_keys)
    level = "sentence" if options.split_sentences else "document"
    outs = {key: out.with_name(f"{out.name}_{key}_{level}") for key in options.json_keys}
    for prefix in outs.values():
        require_absent(prefix)
    with _work(out.with_name(f".{out.name}.tokenize")) as work:
        job, facts = _job(files, options, work)
        shards = Shards(work / "shards", files, job)
        totals = shards.build(workers, progress)
        datasets = {key: shards.assemble(key, work / prefix.name) for key, prefix in outs.items()}
        facts = {
            "datasets": {key: _told(outs[key], merged) for key, merged in datasets.items()},
            "set_aside": totals.set_aside, **facts,
        }  # fmt: skip
        if totals.set_aside:
            shards.gather("set_aside.jsonl", work / "set_aside")
            os.replace(work / "set_aside", out.with_name(f"{out.name}_set_aside.jsonl"))
        record = out.with_name(f"{out.name}_tokens.json")
        record.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        for prefix in outs.values():
            publish(work / prefix.name, prefix)
    return facts


def _job(files: Sequence[Path], options: Options, work: Path) -> tuple[Job, dict[str, Any]]:
    folder = work / "tokenizer"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    prepared = tokenizer.prepare(
        options.tokenizer, folder, options.end_of_document, options.pattern, as_megatron=True
    )
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


@contextmanager
def _work(folder: Path) -> Iterator[Path]:
    """A folder for one command at a time; it stays where the same command can go on."""
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RetryableError(
                "The same dataset is being written", where=folder,
                expected="one command at a time", got="another that runs",
                fix="wait for it, or name another output",
            ) from error  # fmt: skip
        # Datasets are short work, and half of one is of no use.
        for left in [*folder.glob("*.bin"), *folder.glob("*.idx")]:
            left.unlink()
        try:
            yield folder
        except (ConfigError, InputError):
            shutil.rmtree(folder)
            raise
        shutil.rmtree(folder)
