"""`AutoTokenizer` in a process of its own, without PyTorch: half the time, half the memory.

Run as a program: a model folder in, and in the folder OUT either tokenizer.json or, where a
tokenizer exists in Python only, its files in `slow/`. Tells its end-of-sequence token as JSON.

That process takes a second. What it made of the same files with the same versions is kept in
`~/.cache/megaline/tokenizers` (or under `XDG_CACHE_HOME`), which may be removed at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from megatron_bridge.launch import process
from tasks.core.errors import InputError
from tasks.core.fingerprint import sha256_file

SLOW = "slow"

_FORMAT = 1
"""Raised when the same files must give another tokenizer.json."""

_LIBRARIES = ("transformers", "tokenizers", "sentencepiece", "tiktoken", "protobuf")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf")


def resolve(folder: Path, out: Path) -> dict[str, Any]:
    """Write what `AutoTokenizer` makes of a model folder; no network, no code of the model's own.

    Args:
        folder: the model's.
        out: gets tokenizer.json, or `slow/`.

    Returns:
        eos_token (None where there is none), kind (the class's name).

    Raises:
        InputError: transformers cannot load it.
    """
    kept, target = _kept(folder), out / "tokenizer.json"
    if facts := _take(kept, target):
        return facts
    facts = _resolve(folder, out)
    if target.is_file() and kept.is_absolute():
        _keep(facts, target, kept)
    return facts


def _kept(folder: Path) -> Path:
    """Where what was made of a folder's files is kept: a name that changes with all it hangs on.

    Not an absolute path where there is no home.
    """
    files = {file.name: sha256_file(file) for file in _files(folder)}
    versions = [sys.version, *map(_version, _LIBRARIES)]
    name = hashlib.sha256(json.dumps([_FORMAT, versions, files]).encode()).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "megaline", "tokenizers", name)


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _take(kept: Path, target: Path) -> dict[str, Any]:
    """The facts of what is kept, which is copied; nothing where it is not there, or damaged."""
    if kept.is_absolute() and kept.is_dir():
        with suppress(OSError, ValueError):
            facts: dict[str, Any] = json.loads((kept / "facts.json").read_bytes())
            shutil.copyfile(kept / target.name, target)
            if facts.pop("sha256", None) == sha256_file(target):
                return facts
    return {}


def _keep(facts: dict[str, Any], file: Path, kept: Path) -> None:
    # Where no cache can be written, the next call takes its second again.
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = Path(mkdtemp(prefix=".", dir=kept.parent))
        try:
            shutil.copyfile(file, new / file.name)
            told = {**facts, "sha256": sha256_file(file)}
            (new / "facts.json").write_text(json.dumps(told), encoding="utf-8")
            shutil.rmtree(kept, ignore_errors=True)
            os.rename(new, kept)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    """A folder's files, without the weights."""
    return sorted(
        file
        for file in folder.iterdir()
        if file.is_file() and not file.name.startswith(".") and file.suffix not in _WEIGHTS
    )


def _resolve(folder: Path, out: Path) -> dict[str, Any]:
    # Of the folder that the user is in nothing is imported (-P): it may hold a stranger's files.
    command = [sys.executable, "-P", "-m", __name__, str(folder.absolute()), str(out.absolute())]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    offline["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    child = process.tied(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=offline)
    told, complaint = child.communicate()
    if child.returncode == 0:
        return dict(json.loads(told.splitlines()[-1]))
    lines = complaint.decode(errors="replace").strip().splitlines()
    raise InputError(
        "The model's tokenizer cannot be loaded", where=folder,
        expected="a tokenizer that transformers reads without code of the model's own",
        got=lines[-1] if lines else f"exit status {child.returncode}",
        fix="add the tokenizer's files to the model folder",
    )  # fmt: skip


def _write(folder: Path, out: Path) -> dict[str, Any]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True
    )
    facts = {
        "eos_token": tokenizer.eos_token,
        "kind": type(tokenizer).__name__,
    }
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        (out / SLOW).mkdir()
        for file in _files(folder):
            shutil.copyfile(file, out / SLOW / file.name)
        return facts
    backend.no_padding()
    backend.no_truncation()
    (out / "tokenizer.json").write_text(backend.to_str(pretty=True), encoding="utf-8")
    return facts


if __name__ == "__main__":
    # To the import system this is a package that is not there; its type leaves that out.
    sys.modules["torch"] = None  # type: ignore[assignment]
    print(json.dumps(_write(Path(sys.argv[1]), Path(sys.argv[2]))))
