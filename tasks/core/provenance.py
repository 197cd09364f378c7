"""Who made an output: code version, command, host and package versions. Never part of its hash."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

_PACKAGES = (
    "megaline", "torch", "megatron-core", "transformer-engine", "transformers", "tokenizers",
    "safetensors", "gguf", "prefect", "pydantic", "numpy", "lxml", "ftfy", "nltk", "lm-eval",
)  # fmt: skip
_SECRET_NAME = re.compile(
    r"(?i)(^|[._-])(secret|password|passwd|token|credentials?|(access|api|secret|private)_?-?key"
    r"(_?-?(id|secret))?)$"
)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"(?<=\?)\S*(signature|token|key)\S*", re.IGNORECASE)


def provenance(**runs: str) -> dict[str, Any]:
    """The facts of this process, JSON values; `runs` holds flow-run and task-run ids."""
    return {
        **_code_version(),
        "argv": without_secrets(sys.argv),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": _versions(),
        **runs,
    }


def without_secrets(argv: list[str]) -> list[str]:
    """Arguments with `***` where a password, key or token would stand."""
    shown, hide = [], False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        secret = bool(_SECRET_NAME.search(name))
        if hide or (secret and equals):
            argument = f"{name}=***" if equals and not hide else "***"
        hide = secret and not equals and name.startswith("-")
        shown.append(_QUERY.sub("***", _USER_INFO.sub("***@", argument)))
    return shown


@functools.cache
def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def _code_version() -> dict[str, Any]:
    """Commit and dirty flag of the checkout this file is tracked in; None for an installed copy."""
    here = Path(__file__)
    tracked = _git(here.parent, "ls-files", "--error-unmatch", here.name)
    if tracked is None:
        return {"commit": None, "dirty": None}
    status = _git(here.parent, "status", "--porcelain", "--untracked-files=no")
    return {"commit": _git(here.parent, "rev-parse", "HEAD"), "dirty": bool(status)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        run = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() if run.returncode == 0 else None
