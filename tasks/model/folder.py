"""Hugging Face folders: what is taken of one, and what it holds. Light: no torch at import."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.core import sources
from tasks.core.errors import InputError

TOKENIZERS = ("tokenizer.json", "tokenizer.model")

_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_LEFT_OUT = (*_PICKLED, ".h5", ".msgpack", ".onnx", ".gguf", ".py")
"""Weights in other formats, and code: nothing of a model's own is ever run."""


def locate(source: str) -> Path | None:
    """The folder that a path or a `file://` URL names; None where it names no folder."""
    from urllib.parse import unquote, urlsplit

    if source.startswith("file://"):
        path = Path(unquote(urlsplit(source).path))
    elif "://" not in source:
        path = Path(source).expanduser().absolute()
    else:
        return None
    return path if path.is_dir() else None


def taken(path: Path) -> list[Path]:
    """The files of a model folder that bear on the model, sorted by name.

    Subfolders, hidden files, weights in formats other than safetensors, and Python code are not.

    Raises:
        InputError: there is no config.json.
    """
    if not (path / "config.json").is_file():
        raise InputError(
            "This is no Hugging Face model folder", where=path, expected="a config.json in it",
            got="none", fix="name the folder that holds config.json, weights and tokenizer",
        )  # fmt: skip
    return [file for file in sorted(path.iterdir()) if _is_taken(file)]


def left_out(path: Path) -> list[str]:
    """The names in a folder that `taken` does not take."""
    return [file.name for file in sorted(path.iterdir()) if not _is_taken(file)]


def has_weights(path: Path) -> bool:
    """True for a folder with safetensors files.

    Raises:
        InputError: it has weights, but only pickled ones.
    """
    names = [file.name for file in path.iterdir()]
    if any(name.endswith(".safetensors") for name in names):
        return True
    pickled = [name for name in names if name.endswith(_PICKLED)]
    if pickled:
        raise InputError(
            "The weights are pickles, which can run code when they are read", where=path,
            expected="*.safetensors", got=", ".join(sorted(pickled)),
            fix="fetch the model's safetensors files, or convert the weights yourself",
        )  # fmt: skip
    return False


def copy(path: Path, out: Path, progress: Callable[..., None]) -> dict[str, Any]:
    """Copy a folder's files as they are. Returns where the weights came from.

    A copy and no hard link: what is sealed is made read-only, and the source is not ours.
    """
    for file in taken(path):
        sources.fetch(str(file), out / file.name, progress)
    return {"weights": "copied", "left_out": left_out(path)}


def measure(path: Path) -> dict[str, Any]:
    """Count a folder's parameters; returns parameters, dtype, model_type and vocab_size.

    Raises:
        InputError: config.json names no model type or vocabulary size.
    """
    from megatron_bridge.hf import Weights
    from megatron_bridge.sources import source as sources_of

    config = read_config(path)
    with sources_of.opened(path) as source, Weights(source) as weights:
        specs = [weights.spec(name) for name in weights.names]
    counts: dict[str, int] = {}
    for spec in specs:
        size = spec.bytes // spec.dtype.itemsize
        name = str(spec.dtype).removeprefix("torch.")
        counts[name] = counts.get(name, 0) + size
    return {
        "parameters": sum(counts.values()),
        "dtype": max(counts, key=lambda name: counts[name], default=None),
        "model_type": config["model_type"],
        "vocab_size": config["vocab_size"],
    }


def read_config(path: Path) -> dict[str, Any]:
    """A folder's config.json.

    Raises:
        InputError: it is no JSON table with a model type and a vocabulary size.
    """
    file = path / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            "A model's configuration cannot be read", where=file, expected="JSON", got=error
        ) from error
    missing = [key for key in ("model_type", "vocab_size") if key not in config]
    if missing:
        raise InputError(
            "A model's configuration is incomplete", where=file,
            expected="model_type and vocab_size", got=f"no {' and no '.join(missing)}",
            fix="use a text model's folder",
        )  # fmt: skip
    return dict(config)


def finish_config(path: Path) -> None:
    """Set right what transformers 5 saved as config.json.

    `rope_theta` goes beside `rope_parameters`: readers built on transformers 4 (many vLLM images)
    know only the old spelling, and take base 10,000 without a word where they do not find it.
    """
    file = path / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config.pop("_model_name_or_path", None)
    rope = dict(config.get("rope_parameters") or {})
    if "rope_theta" in rope:
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = None if rope.get("rope_type", "default") == "default" else rope
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _is_taken(file: Path) -> bool:
    return file.is_file() and not file.name.startswith(".") and not file.name.endswith(_LEFT_OUT)
