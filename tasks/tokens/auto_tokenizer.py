"""`AutoTokenizer` in a process of its own, without PyTorch: half the time, half the memory.

Run as a program: a model folder in, and in the folder OUT either tokenizer.json or, where a
tokenizer exists in Python only, its files in `slow/`. Tells its end-of-sequence token as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from megatron_bridge.launch import process
from tasks.core.errors import InputError

SLOW = "slow"

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
    command = [sys.executable, "-m", __name__, str(folder.absolute()), str(out.absolute())]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
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
        for file in sorted(folder.iterdir()):
            if file.is_file() and not file.name.startswith(".") and file.suffix not in _WEIGHTS:
                shutil.copyfile(file, out / SLOW / file.name)
        return facts
    backend.no_padding()
    backend.no_truncation()
    (out / "tokenizer.json").write_text(backend.to_str(pretty=True), encoding="utf-8")
    return facts


if __name__ == "__main__":
    # To the import system this is a package that is not there.
    sys.modules["torch"] = None  # type: ignore[assignment]
    print(json.dumps(_write(Path(sys.argv[1]), Path(sys.argv[2]))))
