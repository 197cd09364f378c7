"""A training run's folder: its resume points, its log and its ledger. Light: no torch.

ckpt/iter_0000004/   a whole checkpoint, with the optimizer; one without a commit mark is ignored
log.jsonl            one line a step: loss, gradient norm, learning rate, tokens per second
ledger.jsonl         one line a step: the samples that each rank consumed, their sources, documents
samples.json         what is taken of each source, and where the indices lie
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from megatron_bridge import checkpoint
from megatron_bridge.errors import InputError

LOG, LEDGER, SPEC, SAMPLES = "log.jsonl", "ledger.jsonl", "spec.json", "samples.json"


def folder(run_dir: Path, step: int) -> Path:
    """Where the resume point after `step` lies."""
    return run_dir / "ckpt" / f"iter_{step:07d}"


def newest(run_dir: Path) -> tuple[int, Path | None]:
    """Return step and folder of the newest whole resume point, or `(0, None)`."""
    for step, path in reversed(_points(run_dir)):
        try:
            info = checkpoint.read_info(path)
        except InputError:
            continue
        if info.optimizer and info.iteration == step:
            return step, path
    return 0, None


def cut(run_dir: Path, step: int) -> None:
    """Cut log and ledger back to `step`: what came after it will be done again."""
    for name in (LOG, LEDGER):
        path = run_dir / name
        kept = [line for line in read_lines(path) if line["step"] <= step]
        partial = path.with_name(f".{name}.partial")
        partial.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        os.replace(partial, path)


def prune(run_dir: Path, kept: int) -> None:
    """Remove all resume points but the newest `kept`, and whatever was left unfinished."""
    root = run_dir / "ckpt"
    for path in root.glob(".iter_*.partial") if root.is_dir() else ():
        shutil.rmtree(path)
    for _, path in _points(run_dir)[:-kept]:
        shutil.rmtree(path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a JSON-lines file; a last line cut short by a kill is left out."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _points(run_dir: Path) -> list[tuple[int, Path]]:
    root = run_dir / "ckpt"
    names = os.listdir(root) if root.is_dir() else []
    found = [(name, re.fullmatch(r"iter_(\d+)", name)) for name in names]
    return sorted((int(match[1]), root / name) for name, match in found if match)
