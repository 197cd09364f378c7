"""`transformers serve` on a model folder, on loopback, and greedy completions from it."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_bridge.launch import process
from tasks.core.errors import ConfigError, RetryableError

_START_SECONDS = 300
_ANSWER_SECONDS = 600
_LINES = 15

# Loopback is never behind a proxy, whatever the environment says.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass(frozen=True)
class Completion:
    """What the server answered.

    Attributes:
        pieces: the text as it was streamed, a token each (or several, where one alone is no text).
        prompt_tokens: number of ids of the prompt.
        completion_tokens: number of new ids, an end-of-sequence included.
    """

    pieces: list[str]
    prompt_tokens: int
    completion_tokens: int

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.pieces)


@contextmanager
def server(folder: Path, log: Path) -> Iterator[str]:
    """Serve a folder in float32 on a CPU while the context lasts; yields the base URL.

    Args:
        folder: a Hugging Face folder.
        log: the server's output, kept.

    Raises:
        ConfigError: the server is not installed.
        RetryableError: it ended or did not answer; with its last words.
    """
    if importlib.util.find_spec("fastapi") is None or importlib.util.find_spec("uvicorn") is None:
        raise ConfigError(
            "The serving proof needs a server", where="export.proof",
            expected="transformers with its extra `serving`", got="no fastapi or uvicorn",
            fix="pip install 'megaline[serve]', or set export.proof=false",
        )  # fmt: skip
    port = _free_port()
    command = [
        *(sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"),
    ]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
    with open(log, "wb") as output:
        child = process.tied(
            command, env={**os.environ, **offline}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, child, log)
            yield url
        finally:
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def complete(url: str, folder: Path, prompt: str, max_tokens: int, log: Path) -> Completion:
    """Ask `/v1/completions` for greedy tokens.

    Raises:
        RetryableError: the server failed; with its last words.
    """
    body = {
        "model": str(folder),
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        # The server makes a repetition penalty of it: 0 takes away what the model's own
        # generation config may ask for, which plain greedy search does not know.
        "frequency_penalty": 0,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with _open(request, timeout=_ANSWER_SECONDS) as response:
            chunks = [json.loads(line[5:]) for line in response if _is_chunk(line)]
        usage = chunks[-1]["usage"]
        texts = [chunk["choices"][0]["text"] for chunk in chunks]
        return Completion(
            list(filter(None, texts)), usage["prompt_tokens"], usage["completion_tokens"]
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _failure(f"{type(error).__name__}: {error}", log) from error


def _is_chunk(line: bytes) -> bool:
    return line.startswith(b"data:") and line[5:].strip() != b"[DONE]"


def _wait(url: str, child: subprocess.Popen[Any], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if child.poll() is not None:
            raise _failure(f"it ended with status {child.returncode}", log)
        try:
            with _open(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise _failure(f"no answer from {url}/health in {_START_SECONDS} s", log)


def _failure(got: str, log: Path) -> RetryableError:
    words = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:]
    return RetryableError(
        "transformers serve failed", where=log, expected="an answer over HTTP",
        got="\n".join([got, *words]), fix="run again, and read the log if it fails again",
    )  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
