"""What the commands print: one JSON document, or plain lines; the line of each stage as it ends."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from megatron_bridge.data import blend
from tasks.core.progress import clear

if TYPE_CHECKING:
    from tasks.core.record import Record


def say(document: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print the document as JSON, or else the lines."""
    if as_json:
        print(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        for line in lines:
            print(line)


def tell_stages(stream: TextIO) -> None:
    """Print the line of each stage as it ends."""
    handler = _Lines(stream)
    handler.addFilter(lambda record: record.levelno == logging.INFO)
    log = logging.getLogger("flows.reports")
    log.setLevel(logging.INFO)
    log.addHandler(handler)


def tell_warnings() -> None:
    """Print warnings and errors of our own packages on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("megaline: %(message)s"))
    handler.setLevel(logging.WARNING)
    for name in ("flows", "tasks", "megatron_bridge"):
        logging.getLogger(name).addHandler(handler)


def plan_lines(rows: Sequence[Mapping[str, str]], samples: Sequence[dict[str, Any]]) -> list[str]:
    """One line a stage, of the rows of `megaline plan`, and one a source of training samples."""
    stages = [
        f"{row['stage']:<13}{row['state']:<10}{row['fingerprint']}  {row['label']}" for row in rows
    ]
    return [*stages, "", *blend.lines(samples)] if samples else stages


def why_lines(stage: str, state: str, nearest: Path | None, differences: list[str]) -> list[str]:
    """What differs between a planned stage and the nearest sealed output of it."""
    if nearest is None:
        return [f"{stage} is {state}: this store holds no sealed output of it to compare with"]
    nearest_is = f"{stage} is {state}; nearest sealed output: {nearest}"
    return [nearest_is, *(differences or ["nothing differs"])]


def record_lines(folder: Path, record: Record, above: Mapping[str, Record | None]) -> list[str]:
    """A record with its files and what it was made from."""
    document = record.model_dump(mode="json")
    lines = [str(folder)]
    for key in ("stage", "version", "label", "fingerprint", "created_at", "seconds"):
        lines.append(f"  {key:<12} {document[key]}")
    for title in ("metrics", "provenance"):
        lines += [title, *(f"  {key:<24} {value}" for key, value in document[title].items())]
    lines += ["files", *(f"  {f.bytes:>14,}  {f.sha256[:12]}  {f.path}" for f in record.files)]
    return [
        *lines,
        "made from",
        *(f"  {k}{'' if item else '  (gone)'}" for k, item in above.items()),
    ]


def verify_lines(folder: Path, files: int, deep: bool, wrong: Sequence[str]) -> list[str]:
    """Whether an output is what its record says, and where it is not."""
    checked = "digests" if deep else "sizes"
    first = f"{folder}: {files} files, {checked}: {'ok' if not wrong else 'WRONG'}"
    return [first, *(f"  {line}" for line in wrong)]


class _Lines(logging.StreamHandler[TextIO]):
    """Plain lines, in place of the progress line."""

    def emit(self, record: logging.LogRecord) -> None:
        clear()
        super().emit(record)
