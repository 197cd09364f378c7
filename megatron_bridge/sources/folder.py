"""The weights of a model folder, whatever kind its files are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from megatron_bridge.errors import InputError
from megatron_bridge.sources import safetensors_file, torch_file
from megatron_bridge.sources.ranges import Ranges
from megatron_bridge.sources.stored import Readable, Stored

Open = Callable[[str], Ranges]
"""Opens a file of the folder by its name."""

KINDS = (
    ("model.safetensors.index.json", ".safetensors", safetensors_file.tensors),
    ("pytorch_model.bin.index.json", ".bin", lambda file: _from_torch(file)),
)
"""Kinds of weight files, the preferred first: index, suffix and reader."""


WEIGHT_SUFFIXES = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".ot",
)
"""Of files that hold weights of any framework; none of them travels beside the weights."""
INDEX_SUFFIX = ".index.json"


def find(folder: str, present: Sequence[str], opened: Open) -> dict[str, Readable]:
    """Return every tensor of a folder's weight files by name.

    Args:
        folder: where the files lie, for errors.
        present: the names of its files.
        opened: opens one of them.

    Raises:
        InputError: no weight files, one that is missing or damaged, or a name in two files.
    """
    for index, suffix, read in KINDS:
        names = [name for name in sorted(present) if _is_weights(name, suffix)]
        if index in present:
            names = _listed(folder, opened(index), names)
        if names:
            return _merged(map(opened, names), read)
    raise InputError(
        "The model folder has no weights",
        where=folder,
        expected="*.safetensors, or pytorch_model*.bin",
        got=", ".join(present[:8]) or "an empty folder",
        fix="give a folder with the model's weights",
    )


def _is_weights(name: str, suffix: str) -> bool:
    # Beside pytorch_model.bin lie training_args.bin, optimizer.bin and others.
    return name.endswith(suffix) and (suffix != ".bin" or name.startswith("pytorch_model"))


def _listed(folder: str, index: Ranges, names: list[str]) -> list[str]:
    try:
        table = json.loads(index.read(0, index.size))
        listed = {str(file) for file in table["weight_map"].values()}
        if not listed:
            raise KeyError("weight_map is empty")
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            "The index of the weight files cannot be read",
            where=index.name,
            expected="a table with weight_map",
            got=repr(error),
            fix="fetch the file again",
        ) from error
    if missing := sorted(listed - set(names)):
        raise InputError(
            "A weight file is missing",
            where=folder,
            expected="the files that the index lists",
            got=f"no {', '.join(missing)}",
            fix="fetch the missing files",
        )
    return sorted(listed)


def _merged(
    files: Iterable[Ranges], read: Callable[[Ranges], dict[str, Stored]]
) -> dict[str, Readable]:
    found: dict[str, Readable] = {}
    for file in files:
        for name, tensor in read(file).items():
            if name in found:
                raise InputError(
                    "A tensor is in two weight files",
                    where=name,
                    expected="every tensor once",
                    got=f"{found[name].where} and {file.name}",
                    fix="remove the file that does not belong to the model",
                )
            found[name] = tensor
    return found


def _from_torch(file: Ranges) -> dict[str, Stored]:
    tree: Any = torch_file.load(file)
    if not isinstance(tree, dict) or not all(isinstance(t, Stored) for t in tree.values()):
        raise InputError(
            "The weight file holds something other than tensors by name",
            where=file.name,
            expected="a table of tensors, as save_pretrained writes it",
            got=f"a {type(tree).__name__}",
            fix="give the folder that transformers wrote",
        )
    return tree
