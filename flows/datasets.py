"""`megaline tokenize` and `megaline merge`: Megatron's indexed datasets, outside of any run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, validators

from flows import console
from flows.arguments import Json
from tasks.core import sources
from tasks.core.progress import Progress

_Flag = Parameter(negative="")


def tokenize(
    files: Annotated[list[Path], Parameter(help="JSON lines, plain, gz, bz2, xz or zst; in order")],
    /,
    *,
    tokenizer: Path,
    out: Path,
    json_keys: str = "text",
    append_eod: Annotated[bool, _Flag] = False,
    split_sentences: Annotated[bool, _Flag] = False,
    end_of_document: str | None = None,
    special_tokens: bool = True,
    pattern: str | None = None,
    workers: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 0,
    json: Json = False,
) -> int:
    """Write indexed datasets, byte for byte as Megatron-LM's preprocess_data.py would.

    The files are PREFIX_KEY_document.bin and .idx for each key, or PREFIX_KEY_sentence. A line that
    is no JSON, or has no such text, is set aside in PREFIX_set_aside.jsonl and counted.
    PREFIX_tokens.json says which tokenizer and which encoder made them. After a kill the same
    command goes on.

    For example:

    megaline tokenize part-*.jsonl --tokenizer models/qwen3 --out data/wiki --append-eod

    Args:
        tokenizer: a model folder; a tokenizer.json, SentencePiece or tiktoken file; or a vocab.json
        out: PREFIX, a path
        json_keys: the fields that hold the texts, such as text,title
        append_eod: end each document that is not empty with the end-of-document token
        split_sentences: make each sentence a sequence of its own, by nltk's English model
        end_of_document: this token; the tokenizer's eos_token without it
        special_tokens: put the tokenizer's own special tokens around each text, as Megatron-LM does
        pattern: how a tiktoken file's texts are split, where the file is not a known one
        workers: processes; one a processor without it
    """
    from tasks.tokens.preprocess import Options, preprocess

    keys = tuple(key.strip() for key in json_keys.split(","))
    options = Options(
        tokenizer, keys, append_eod, split_sentences, end_of_document, special_tokens, pattern
    )
    found = [sources.locate(str(file)) for file in files]
    progress, started = Progress("tokenize"), time.monotonic()
    try:
        facts = preprocess(found, out, options, workers or os.cpu_count() or 1, progress)
    finally:
        progress.close()
    facts["seconds"] = round(time.monotonic() - started, 3)
    console.say(facts, _tokenize_lines(facts), json)
    return 0


def merge(out: Path, inputs: list[Path], /, *, json: Json = False) -> int:
    """Put indexed datasets behind one another as one, and check each of them on the way.

    Byte for byte what Megatron-LM's merge_datasets.py makes of the same order. Nothing is written
    over, and OUT is there when it is whole.

    For example:

    megaline merge data/all data/part-0_text_document data/part-1_text_document

    megaline merge data/all data/parts

    Args:
        out: a prefix: OUT.bin and OUT.idx are written
        inputs: prefixes, or folders of datasets, which are taken in the order of their names
    """
    from tasks.tokens.merge import merge as merge_datasets
    from tasks.tokens.merge import prefixes

    progress, started = Progress("merge"), time.monotonic()
    try:
        merged = merge_datasets(
            prefixes(inputs), out, lambda done, total: progress(done, total, unit="bytes")
        )
    finally:
        progress.close()
    seconds = round(time.monotonic() - started, 3)
    facts = {"out": str(out), **asdict(merged), "seconds": seconds}
    console.say(facts, [f"{out}: {_counts(facts)}, of {merged.datasets} datasets"], json)
    return 0


def _tokenize_lines(facts: dict[str, Any]) -> Iterator[str]:
    for dataset in facts["datasets"].values():
        yield f"{dataset['prefix']}: {_counts(dataset)}"
    ending = facts["end_of_document_token"] if facts["append_eod"] else "nothing"
    yield f"after each document: {ending}"
    yield f"encoder: {facts['encoder']}, {facts['reason']}"
    if facts["set_aside"]:
        yield f"set aside: {facts['set_aside']} lines"


def _counts(facts: dict[str, Any]) -> str:
    counts = ", ".join(f"{facts[key]:,} {key}" for key in ("documents", "sequences", "tokens"))
    return f"{counts} as {facts['dtype']}"
