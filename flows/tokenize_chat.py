"""`megaline tokenize-chat`: chat rows to packed token ids with a loss mask."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from flows import console
from flows.arguments import Json
from flows.show_tokens import printable
from tasks.core import sources
from tasks.core.progress import Progress


def tokenize_chat(
    rows: str,
    /,
    *more: str,
    model: Path,
    out: Path,
    sequence_length: Annotated[int, Parameter(validator=Number(gte=2))],
    loss: Literal["answers", "all"] = "answers",
    too_long: Literal["drop", "truncate"] = "drop",
    date: datetime.date | None = None,
    workers: Annotated[int, Parameter(validator=Number(gte=1))] = 2,
    json: Json = False,
) -> int:
    """Write chat messages as packed token ids, and which of them bear loss.

    The model's own chat template makes the text. Conversations are packed whole. The files are
    OUT.bin and .idx (ids), OUT_mask.bin and .idx (1 where a token bears loss), OUT_documents.jsonl
    (where each conversation came from), OUT_set_aside.jsonl (rows that gave none, with the reason),
    OUT_tokens.json and OUT_tokenizer.json. A dataset that is there is not written over.

    For example:

    megaline tokenize-chat chat.jsonl --model build/model --out build/chat/train
    --sequence-length 4096

    Args:
        rows: JSON lines with `messages` or `conversations`: a path, file:///path, package://NAME/path
        more: more of them
        model: a Hugging Face folder with a tokenizer and a chat template
        out: path without .bin and .idx
        sequence_length: tokens of a pack at most
        loss: which tokens bear loss: the assistant's answers and the ends of its turns, or all
        too_long: a conversation that is longer than a pack is left out, or loses its end
        date: what a template writes that asks for today's date
        workers: processes; they change no byte
    """
    from tasks.tokens.sft import dataset

    files = [sources.locate(name) for name in (rows, *more)]
    progress = Progress("tokenize-chat")
    try:
        told = dataset.make(
            files, out, model, progress, workers, date=date,
            sequence_length=sequence_length, loss=loss, too_long=too_long,
        )  # fmt: skip
    finally:
        progress.close()
    console.say({"out": str(out.absolute()), **told}, _lines(out, told), json)
    return 0


def _lines(out: Path, told: Mapping[str, Any]) -> Iterator[str]:
    yield str(out.absolute())
    yield (
        f"{told['conversations']:,} conversations in {told['packs']:,} packs of up to "
        f"{told['sequence_length']:,} tokens, {told['fill']:.1%} full"
    )
    share = told["loss_tokens"] / told["tokens"]
    yield f"{told['tokens']:,} tokens, of which {told['loss_tokens']:,} bear loss ({share:.1%})"
    for name in ("answers_without_end", "straddling_tokens", "truncated"):
        if told[name]:
            yield f"{name.replace('_', ' ')}: {told[name]:,}"
    if told["set_aside"]:
        yield f"set aside: {told['set_aside']:,} rows"
    for reason, rows in told["reasons"].items():
        yield f"  {rows:>9,}  {printable(reason)}"
