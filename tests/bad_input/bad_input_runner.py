"""Runs commands as real processes that need not import torch and Prefect again each time.

A fork server loads the libraries once; each command is a fork of it, in a session of its own, with
its own files for standard output and standard error, and a mark in the environment of whatever it
starts.
"""

from __future__ import annotations

import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.core import stage

MARK = "MEGALINE_TEST_MARK"
_HEAVY = ["flows.cli", "flows.pipeline", "torch", "tasks.tokens.dataset", "transformers"]
_HEAVY += ["prefect.server.api.server", "megatron_bridge.__main__", "megatron_bridge.convert"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__, *_HEAVY])


@dataclass(frozen=True)
class Answer:
    """What a command left behind: exit status, words, and processes that outlived it."""

    code: int | None
    out: str
    err: str
    left: list[int]


def preload(environment: dict[str, str]) -> None:
    """Start the fork server; Prefect reads its settings from the environment as it is imported."""
    before = dict(os.environ)
    try:
        os.environ.update(environment)
        multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def run(
    module: str, arguments: Sequence[object], folder: Path, environment: dict[str, str]
) -> Answer:
    """Run `python -m MODULE ARGUMENTS` in `folder`, after `preload`, and wait for it."""
    mark = uuid.uuid4().hex
    out, err = folder / f"{mark}.out", folder / f"{mark}.err"
    words = [str(word) for word in arguments]
    process = _context.Process(
        target=_inside, args=(module, words, str(folder), environment | {MARK: mark}, out, err)
    )
    process.start()
    process.join(120)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError(f"{words} did not end: {err.read_text()}")
    left = marked(mark)
    texts = [path.read_text(encoding="utf-8") for path in (out, err)]
    return Answer(process.exitcode, *texts, left)


def marked(mark: str) -> list[int]:
    """The living processes that carry a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def _inside(
    module: str,
    words: list[str],
    folder: str,
    environment: dict[str, str],
    out: Path,
    err: Path,
) -> None:
    # Retries are tried in tests/flows; here they would only cost their pauses.
    stage.RETRY_DELAYS_SECONDS.clear()
    os.setsid()
    os.chdir(folder)
    os.environ.update(environment)
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    sys.exit(importlib.import_module(module).main(words))
