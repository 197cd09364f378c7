"""Reading and writing `torch_dist`, the format of Megatron's checkpoints, one tensor at a time.

Nothing here builds a model or a process group. The layout on disk is PyTorch's distributed
checkpoint (`torch.distributed.checkpoint.filesystem`): tensors in `*.distcp`, their index in
`.metadata` (a pickle), Megatron's own `common.pt` and `metadata.json`.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from megatron_bridge.errors import InputError
from megatron_bridge.sources import torch_file
from megatron_bridge.sources.ranges import LocalFile, Part
from megatron_bridge.sources.stored import Stored, fill

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint.metadata import Metadata

MOST_OPEN = 64
"""Files open at once: a checkpoint may have thousands, and a process 1,024."""

# What training keeps beside the model: ours, then Megatron-LM's names for the same.
_STATE = ("optimizer.", "rng.", "chained_0.", "rng_state", "rerun_state_machine")


@dataclass(frozen=True)
class Chunk:
    """One block of a checkpoint tensor to be written; `produce` is called when its turn comes."""

    key: str
    offset: tuple[int, ...]
    size: tuple[int, ...]
    global_size: tuple[int, ...]
    dtype: torch.dtype
    produce: Callable[[], torch.Tensor]


class Placed(BaseModel):
    """One block that was written: which, and where it lies."""

    model_config = ConfigDict(frozen=True)

    key: str
    offset: tuple[int, ...]
    size: tuple[int, ...]
    global_size: tuple[int, ...]
    dtype: str
    file: str
    start: int
    length: int


def write_file(path: Path, chunks: Iterable[Chunk]) -> list[Placed]:
    """Write blocks one after the other into a new `.distcp` file; only one is in memory."""
    import torch

    placed = []
    with path.open("wb") as file:
        for chunk in chunks:
            start = file.tell()
            torch.save(chunk.produce(), file)
            placed.append(
                Placed(
                    key=chunk.key,
                    offset=chunk.offset,
                    size=chunk.size,
                    global_size=chunk.global_size,
                    dtype=str(chunk.dtype).removeprefix("torch."),
                    file=path.name,
                    start=start,
                    length=file.tell() - start,
                )
            )
        file.flush()
        os.fsync(file.fileno())
    return placed


def write_index(
    folder: Path,
    placed: Iterable[Placed],
    common: Mapping[str, Any] | None = None,
    empty: Iterable[str] = (),
) -> None:
    """Write what makes `.distcp` files a checkpoint: their index, and Megatron's own two files.

    Args:
        folder: where the files lie.
        placed: what is in them.
        common: what all ranks of a run have in common.
        empty: keys of further entries, which hold None.
    """
    import torch
    from torch.distributed.checkpoint import metadata as dcp
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    tensors: dict[str, dcp.TensorStorageMetadata] = {}
    storage = {}
    for block in placed:
        # A pickle tells one string used twice from two that are equal.
        key, file = sys.intern(block.key), sys.intern(block.file)
        entry = tensors.setdefault(
            key,
            dcp.TensorStorageMetadata(
                properties=dcp.TensorProperties(dtype=getattr(torch, block.dtype)),
                size=torch.Size(block.global_size),
                chunks=[],
            ),
        )
        offset = torch.Size(block.offset)
        entry.chunks.append(dcp.ChunkStorageMetadata(offset, torch.Size(block.size)))
        storage[dcp.MetadataIndex(key, offset)] = _StorageInfo(file, block.start, block.length)
    if empty := sorted(empty):
        entry_file = folder / "__empty_0.distcp"
        torch.save([None], entry_file)  # a list, as Megatron has it
        info = _StorageInfo(entry_file.name, 0, entry_file.stat().st_size)
        storage |= {dcp.MetadataIndex(key): info for key in empty}
    entries: dict[str, Any] = {**tensors, **{key: dcp.BytesStorageMetadata() for key in empty}}
    # torch's writer puts its path and a random id here; without them equal models are equal files.
    index = dcp.Metadata(entries, storage_data=storage, storage_meta=dcp.StorageMeta())
    with (folder / ".metadata").open("wb") as stream:
        pickle.dump(index, stream)
    torch.save(dict(common or {}), folder / "common.pt")
    backend = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    backend |= {"common_backend": "torch", "common_backend_version": 1}
    (folder / "metadata.json").write_text(json.dumps(backend), encoding="utf-8")


class Reader:
    """The tensors of a `torch_dist` checkpoint, read by ranges."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._metadata = read_metadata(self.folder)
        self._shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        self._files: dict[str, LocalFile] = {}
        self._chunks: dict[tuple[str, tuple[int, ...]], Stored] = {}

    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return global shape and dtype of every tensor by key; byte entries are left out."""
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        if not self._shapes:
            self._shapes = {
                key: (tuple(entry.size), entry.properties.dtype)
                for key, entry in self._metadata.state_dict_metadata.items()
                if isinstance(entry, TensorStorageMetadata)
            }
        return self._shapes

    def read(
        self, key: str, index: tuple[int, ...] = (), start: int = 0, stop: int | None = None
    ) -> torch.Tensor:
        """Return the slice of `key` at `index` of its first dimensions, or rows of it.

        Raises:
            InputError: the checkpoint's blocks do not cover what was asked for.
        """
        import torch

        entry: Any = self._metadata.state_dict_metadata[key]
        tail = tuple(entry.size)[len(index) :]
        rows = (start, tail[0] if stop is None else stop) if tail else (0, 1)
        target = torch.empty((rows[1] - rows[0], *tail[1:]), dtype=entry.properties.dtype)
        covered = 0
        for chunk in entry.chunks:
            offset, size = tuple(chunk.offsets), tuple(chunk.sizes)
            at = tuple(i - o for i, o in zip(index, offset, strict=False))
            if any(not 0 <= i < n for i, n in zip(at, size, strict=False)):
                continue
            first, count = (offset[len(index)], size[len(index)]) if tail else (0, 1)
            low, high = max(rows[0], first), min(rows[1], first + count)
            if low >= high:
                continue
            stored = self._stored(key, offset)
            if stored.shape != size or stored.dtype != target.dtype:
                raise InputError(
                    "A block of the checkpoint is not what its index says",
                    where=f"{self.folder}, {key}",
                    expected=f"{target.dtype} {list(size)}",
                    got=f"{stored.dtype} {list(stored.shape)}",
                    fix="write the checkpoint again",
                )
            part = target[low - rows[0] : high - rows[0]]
            columns = list(zip(offset[len(index) + 1 :], size[len(index) + 1 :], strict=True))
            if [n for _, n in columns] == list(tail[1:]):
                fill(stored.at(at), low - first, part)
                covered += part.numel()
                continue
            block = stored.at(at).read(low - first, high - first)
            part[(slice(None), *(slice(o, o + n) for o, n in columns))] = block
            covered += block.numel()
        if covered != target.numel():
            raise InputError(
                "A tensor of the checkpoint is incomplete",
                where=f"{self.folder}, {key}",
                expected=f"{target.numel()} values",
                got=f"{covered} values",
                fix="write the checkpoint again",
            )
        return target if tail else target[0]

    def has_entry(self, key: str) -> bool:
        """True for a key that is there, tensor or not."""
        return key in self._metadata.state_dict_metadata

    def entry(self, key: str) -> Any:
        """Return what lies under a key that is no tensor: a tree of plain values."""
        return torch_file.load(self._part(key, None))

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._chunks.clear()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stored(self, key: str, offset: tuple[int, ...]) -> Stored:
        if (key, offset) not in self._chunks:
            self._chunks[key, offset] = self._find(key, offset)
        return self._chunks[key, offset]

    def _find(self, key: str, offset: tuple[int, ...]) -> Stored:
        tensor = torch_file.load(self._part(key, offset))
        if not isinstance(tensor, Stored):
            raise InputError(
                "The checkpoint is damaged", where=f"{self.folder}, {key}", got=type(tensor)
            )
        return tensor

    def _part(self, key: str, offset: tuple[int, ...] | None) -> Part:
        """Where a block lies; byte entries have no offset."""
        import torch
        from torch.distributed.checkpoint.metadata import MetadataIndex

        storage: Any = self._metadata.storage_data
        at = None if offset is None else torch.Size(offset)
        info = storage.get(MetadataIndex(key, at))
        if info is None:
            raise InputError(
                "The checkpoint's index does not say where a block lies",
                where=f"{self.folder}, {key}",
                expected="a file for every block",
                got=f"none for the one at {list(offset or ())}",
                fix="write the checkpoint again",
            )
        if getattr(info, "transform_descriptors", None):
            raise InputError(
                "The checkpoint is compressed",
                where=self.folder,
                expected="plain tensors",
                got=info.transform_descriptors,
            )
        name = info.relative_path
        if name != Path(name).name:
            raise InputError(
                "The checkpoint points outside its folder", where=self.folder, got=name
            )
        if name not in self._files:
            if len(self._files) >= MOST_OPEN:
                self.close()
            self._files[name] = LocalFile(self.folder / name)
        return Part(self._files[name], info.offset, info.length)


def read_metadata(folder: Path) -> Metadata:
    """Return the index of a checkpoint; its pickle may name torch's own index classes only.

    Raises:
        InputError: no index, a damaged one, or a pickle that names anything else.
    """
    path = Path(folder) / ".metadata"
    try:
        with path.open("rb") as file:
            metadata: Metadata = RestrictedUnpickler(file, path).load()
    except FileNotFoundError as error:
        raise InputError(
            "The folder holds no torch_dist checkpoint",
            where=folder,
            expected=".metadata beside *.distcp",
            got="no .metadata",
        ) from error
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        IndexError,
        TypeError,
        AttributeError,
        KeyError,
        ImportError,
    ) as error:
        raise InputError("The checkpoint's index is damaged", where=path, got=error) from error
    return metadata


def is_model_key(key: str) -> bool:
    """True for a weight; False for optimizer and random states and Transformer Engine's extras."""
    return not key.startswith(_STATE) and not key.endswith("._extra_state")


class RestrictedUnpickler(pickle.Unpickler):
    """An unpickler that builds nothing but what a checkpoint's index is made of.

    PyTorch's own reader opens `.metadata` with a bare `pickle.load`, which runs whatever a stranger
    put there.
    """

    ALLOWED = frozenset(
        {
            ("torch", "Size"),
            ("torch.serialization", "_get_layout"),
            ("collections", "OrderedDict"),
            ("pathlib", "PosixPath"),
            ("pathlib._local", "PosixPath"),
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            *(
                ("torch.distributed.checkpoint.metadata", name)
                for name in (
                    "BytesStorageMetadata",
                    "ChunkStorageMetadata",
                    "Metadata",
                    "MetadataIndex",
                    "StorageMeta",
                    "TensorProperties",
                    "TensorStorageMetadata",
                    "_MEM_FORMAT_ENCODING",
                )
            ),
            # Megatron's writer keeps the ranks' save plans in the index.
            *(
                ("torch.distributed.checkpoint.planner", name)
                for name in ("SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")
            ),
            *(
                ("torch", f"{kind}{bits}")
                for kind, sizes in (
                    ("float", ("16", "32", "64", "8_e4m3fn", "8_e5m2")),
                    ("int", ("8", "16", "32", "64")),
                )
                for bits in sizes
            ),
            ("torch", "bfloat16"),
            ("torch", "uint8"),
            ("torch", "bool"),
        }
    )

    def __init__(self, file: IO[bytes], path: Path) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class; anything else is refused before it runs."""
        if (module, name) not in self.ALLOWED:
            raise InputError(
                "The checkpoint's index names something that does not belong there",
                where=self._path,
                expected="torch's own index classes",
                got=f"{module}.{name}",
                fix="do not open this file; it may have been made to run code",
            )
        # Python 3.13 names the class by where it lies there.
        return super().find_class("pathlib" if module == "pathlib._local" else module, name)
