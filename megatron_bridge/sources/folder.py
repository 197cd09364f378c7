"""The weights of a model folder, whatever kind its files are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from megatron_bridge.errors import InputError
from megatron_bridge.sources import safetensors_file, torch_file
from megatron_bridge.sources.ranges import LocalFile, Ranges
from megatron_bridge.sources.stored import Stored

KINDS = (
    ("model.safetensors.index.json", ".safetensors", safetensors_file.tensors),
    ("pytorch_model.bin.index.json", ".bin", lambda file: _from_torch(file)),
)
"""Kinds of weight files, the preferred first: index, suffix and reader."""


def find(folder: Path, closing: ExitStack) -> dict[str, Stored]:
    """Return every tensor of a folder's weight files by name.

    Args:
        folder: where the files lie.
        closing: closes the files.

    Raises:
        InputError: no weight files, one that is missing or damaged, or a name in two files.
    """
    present = sorted(path.name for path in folder.glob("*") if path.is_file())
    for index, suffix, read in KINDS:
        names = [name for name in present if _is_weights(name, suffix)]
        if index in present:
            names = _listed(folder, index, names)
        if names:
            files = (_opened(folder / name, closing) for name in names)
            return _merged(files, read)
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


def _listed(folder: Path, index: str, names: list[str]) -> list[str]:
    try:
        table = json.loads((folder / index).read_text(encoding="utf-8"))
        listed = {str(file) for file in table["weight_map"].values()}
        if not listed:
            raise KeyError("weight_map is empty")
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            "The index of the weight files cannot be read",
            where=folder / index,
            expected="a table with weight_map",
            got=repr(error),
            fix="fetch the file again",
        ) from error
    if missing := sorted(listed - set(names)):
        raise InputError(
            "A weight file is missing",
            where=folder,
            expected=f"the files that {index} lists",
            got=f"no {', '.join(missing)}",
            fix="fetch the missing files",
        )
    return sorted(listed)


def _opened(path: Path, closing: ExitStack) -> LocalFile:
    file = LocalFile(path)
    closing.callback(file.close)
    return file


def _merged(
    files: Iterable[Ranges], read: Callable[[Ranges], dict[str, Stored]]
) -> dict[str, Stored]:
    found: dict[str, Stored] = {}
    for file in files:
        for name, tensor in read(file).items():
            if name in found:
                raise InputError(
                    "A tensor is in two weight files",
                    where=name,
                    expected="every tensor once",
                    got=f"{found[name].file.name} and {file.name}",
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
