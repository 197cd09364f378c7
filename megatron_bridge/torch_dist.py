"""Reading and writing `torch_dist`, the format of Megatron's checkpoints, one tensor at a time.

Nothing here builds a model or a process group. The layout on disk is PyTorch's distributed
checkpoint (`torch.distributed.checkpoint.filesystem`): tensors in `*.distcp`, their index in
`.metadata` (a pickle), Megatron's own `common.pt` and `metadata.json`.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from megatron_bridge.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint.metadata import Metadata

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


def write(folder: Path, chunks: Iterable[Chunk]) -> None:
    """Write `chunks` as a `torch_dist` checkpoint into an empty `folder`, one tensor at a time."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.metadata import StorageMeta

    class NamelessWriter(FileSystemWriter):
        """Leaves its path and its random id out of the index: the same model, the same bytes."""

        def storage_meta(self) -> StorageMeta:
            return StorageMeta()

    # The steps of torch.distributed.checkpoint.save for one process, without its process group.
    writer = NamelessWriter(folder, thread_count=1, sync_files=False)
    planner = _planner({(chunk.key, chunk.offset): chunk for chunk in chunks})
    planner.set_up_planner({}, writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(is_coordinator=True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    (plan,), metadata = planner.create_global_plan([plan])
    (plan,) = writer.prepare_global_plan([plan])
    results = writer.write_data(planner.finish_plan(plan), planner)
    writer.finish(metadata, [results.wait()])
    torch.save({}, folder / "common.pt")
    backend = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    backend |= {"common_backend": "torch", "common_backend_version": 1}
    (folder / "metadata.json").write_text(json.dumps(backend), encoding="utf-8")


class Reader:
    """Reads tensors of a `torch_dist` checkpoint one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._metadata = read_metadata(self.folder)
        self._open: dict[str, IO[bytes]] = {}

    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return global shape and dtype of every tensor by key; byte entries are left out."""
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        return {
            key: (tuple(entry.size), entry.properties.dtype)
            for key, entry in self._metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }

    def read(self, key: str, index: tuple[int, ...] = ()) -> torch.Tensor:
        """Return the whole tensor `key`, or the slice at `index` of its first dimensions.

        Raises:
            InputError: the checkpoint's blocks do not cover what was asked for.
        """
        import torch

        entry: Any = self._metadata.state_dict_metadata[key]
        start = [0] * len(entry.size)
        stop = list(entry.size)
        start[: len(index)] = index
        stop[: len(index)] = [i + 1 for i in index]
        lengths = [b - a for a, b in zip(start, stop, strict=True)]
        target = torch.empty(lengths, dtype=entry.properties.dtype)
        covered = 0
        for chunk in entry.chunks:
            low = [max(a, o) for a, o in zip(start, chunk.offsets, strict=True)]
            high = [min(b, o + n) for b, o, n in zip(stop, chunk.offsets, chunk.sizes, strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            block = self._block(key, chunk.offsets)
            target[_slices(low, high, start)] = block[_slices(low, high, chunk.offsets)]
            covered += math.prod(b - a for a, b in zip(low, high, strict=True))
        if covered != target.numel():
            raise InputError(
                "A tensor of the checkpoint is incomplete",
                where=f"{self.folder}, {key}",
                expected=f"{target.numel()} values",
                got=f"{covered} values",
                fix="write the checkpoint again",
            )
        return target.reshape(lengths[len(index) :])

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _block(self, key: str, offset: Sequence[int]) -> torch.Tensor:
        import torch
        from torch.distributed.checkpoint.metadata import MetadataIndex

        storage: Any = self._metadata.storage_data
        info = storage[MetadataIndex(key, torch.Size(offset))]
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
        file = self._open.get(name)
        if file is None:
            file = self._open[name] = (self.folder / name).open("rb")
        data = os.pread(file.fileno(), info.length, info.offset)
        block: torch.Tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        return block


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
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, TypeError) as error:
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
        return super().find_class(module, name)


def _slices(low: Sequence[int], high: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(a - o, b - o) for a, b, o in zip(low, high, origin, strict=True))


def _planner(chunks: dict[tuple[str, tuple[int, ...]], Chunk]) -> Any:
    from torch import Size
    from torch.distributed.checkpoint import planner as dcp
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        MetadataIndex,
        TensorProperties,
    )

    class ProducingPlanner(DefaultSavePlanner):
        """Saves tensors that do not exist until the writer asks for them."""

        def create_local_plan(self) -> dcp.SavePlan:
            self.plan = dcp.SavePlan(
                [
                    dcp.WriteItem(
                        index=MetadataIndex(chunk.key, Size(chunk.offset)),
                        type=dcp.WriteItemType.SHARD,
                        tensor_data=dcp.TensorWriteData(
                            chunk=ChunkStorageMetadata(Size(chunk.offset), Size(chunk.size)),
                            properties=TensorProperties(dtype=chunk.dtype),
                            size=Size(chunk.global_size),
                        ),
                    )
                    for chunk in chunks.values()
                ]
            )
            return self.plan

        def resolve_data(self, write_item: dcp.WriteItem) -> torch.Tensor:
            index = write_item.index
            return chunks[index.fqn, tuple(index.offset or ())].produce()

    return ProducingPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
