"""Hugging Face folders: weights by name without loading them all, and a header-first shard writer.

Format of a safetensors file: 8 bytes little-endian header length, a JSON header, the tensors' bytes
(https://github.com/huggingface/safetensors). A writer that knows all names, dtypes and shapes can
write the header first and then stream one tensor after the other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge.checkpoint import Dequantised
from megatron_bridge.errors import InputError
from megatron_bridge.sources.folder import INDEX_SUFFIX, WEIGHT_SUFFIXES
from megatron_bridge.sources.remote import RemoteFile
from megatron_bridge.sources.safetensors_file import CODES
from megatron_bridge.sources.source import Source
from megatron_bridge.sources.stored import Readable

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 5 * 1000**3  # the limit that transformers' save_pretrained used for years

_INDEX = "model.safetensors.index.json"
_FORMATS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written: name, dtype and shape."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        size = self.dtype.itemsize
        for n in self.shape:
            size *= n
        return size


class Weights:
    """The tensors of a model, read by ranges."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._closing = ExitStack()
        with self._closing:
            self._tensors, self._files = source.tensors(self._closing)
            # All is well: what was opened stays open until `close`.
            self._closing = self._closing.pop_all()

    @property
    def names(self) -> list[str]:
        """Every tensor's name, sorted."""
        return sorted(self._tensors)

    def stored(self, name: str) -> Readable:
        """Return a tensor where it lies."""
        return self._tensors[name]

    def state(self) -> list[list[Any]]:
        """Return name, size and state of every weight file."""
        return sorted([file.name, file.size, file.state] for file in self._files)

    @property
    def fetched(self) -> int:
        """Bytes that came from elsewhere so far."""
        return sum(file.fetched for file in self._files if isinstance(file, RemoteFile))

    @property
    def bytes(self) -> int:
        """Size of all weight files."""
        return sum(file.size for file in self._files)

    def dequantised(self) -> Dequantised | None:
        """Say what the weights were quantised in; None where they are read as they lie."""
        computed = [
            tensor
            for tensor in self._tensors.values()
            if tensor.stored_as != dtype_name(tensor.dtype)
        ]
        if not computed:
            return None
        return Dequantised(
            formats=dict(Counter(tensor.stored_as for tensor in computed).most_common()),
            tensors=len(computed),
            to=tuple(sorted({dtype_name(tensor.dtype) for tensor in computed})),
        )

    def spec(self, name: str) -> TensorSpec:
        """Return dtype and shape without reading the data."""
        tensor = self._tensors[name]
        if dtype_name(tensor.dtype) not in _FORMATS:
            raise InputError(
                "A weight's number format is not supported",
                where=f"{tensor.where}, {name}",
                expected=" or ".join(_FORMATS),
                got=dtype_name(tensor.dtype),
                fix="convert the weights to bfloat16 or float32 first",
            )
        return TensorSpec(name, tensor.dtype, tensor.shape)

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor."""
        return self._tensors[name].read()

    def close(self) -> None:
        """Close the files."""
        self._closing.close()

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def dtype_of(name: str) -> torch.dtype:
    """`"bfloat16"` to `torch.bfloat16`."""
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.bfloat16` to `"bfloat16"`."""
    return str(dtype).removeprefix("torch.")


def main_dtype(parts: Iterable[tuple[torch.dtype, int]]) -> torch.dtype:
    """Return the number format that most of a model has; `parts` are formats and amounts."""
    amounts: Counter[torch.dtype] = Counter()
    for dtype, amount in parts:
        amounts[dtype] += amount
    return amounts.most_common(1)[0][0]


def carried_files(folder: Path) -> list[Path]:
    """Return the files of a model folder that travel beside its weights, sorted by name.

    Config, tokenizer, chat template, generation config, licence: every file of the folder itself
    but weights, their indices and hidden files. Certificates and commit marks are not the model's.
    """
    skipped = {"certificate.json", "checkpoint.json"}
    return sorted(
        path
        for path in Path(folder).iterdir()
        if path.is_file()
        and not path.name.startswith(".")
        and not path.name.endswith((*WEIGHT_SUFFIXES, INDEX_SUFFIX))
        and path.name not in skipped
    )


def digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file that travels beside the weights; none of a missing folder."""
    found = {}
    for path in carried_files(folder) if folder.is_dir() else ():
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in a folder's weight files."""

    file: str
    offset: int
    dtype: str


def prepare(
    folder: Path, specs: Iterable[TensorSpec], shard_bytes: int = SHARD_BYTES
) -> dict[str, Place]:
    """Write the headers of safetensors shards, and return where each tensor's bytes belong.

    Tensors lie in the order of their names, as the safetensors library writes them, so that a round
    trip gives the same file. One file is `model.safetensors`; several get an index, as transformers
    writes them. What a file holds behind its header already, it keeps.
    """
    shards = _shards(sorted(specs, key=lambda spec: spec.name), shard_bytes)
    total = len(shards)
    places = {}
    for number, shard in enumerate(shards, 1):
        numbered = f"model-{number:05d}-of-{total:05d}.safetensors"
        name = numbered if total > 1 else "model.safetensors"
        header = _header(shard)
        position = len(header)
        for spec in shard:
            places[spec.name] = Place(name, position, dtype_name(spec.dtype))
            position += spec.bytes
        with (folder / name).open("r+b" if (folder / name).is_file() else "wb") as file:
            file.write(header)
            file.truncate(position)
    if total > 1:
        size = {"total_size": sum(spec.bytes for shard in shards for spec in shard)}
        weight_map = {name: place.file for name, place in places.items()}
        text = json.dumps({"metadata": size, "weight_map": weight_map}, indent=2)
        (folder / _INDEX).write_text(text + "\n", encoding="utf-8")
    return places


def write_at(descriptor: int, position: int, data: memoryview) -> None:
    """Write all of `data` at a position of an open file."""
    while data:  # one call writes at most 2 GiB
        written = os.pwrite(descriptor, data, position)
        data, position = data[written:], position + written


def _shards(specs: Sequence[TensorSpec], limit: int) -> list[list[TensorSpec]]:
    shards: list[list[TensorSpec]] = [[]]
    size = 0
    for spec in specs:
        if shards[-1] and size + spec.bytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(spec)
        size += spec.bytes
    return shards


def _header(specs: Sequence[TensorSpec]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in specs:
        start, end = end, end + spec.bytes
        header[spec.name] = {
            "dtype": CODES[dtype_name(spec.dtype)],
            "shape": list(spec.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
