"""Reading and writing `torch_dist`, the format of Megatron's checkpoints, one tensor at a time.

Nothing here builds a model or a process group. The layout on disk is PyTorch's distributed
checkpoint (`torch.distributed.checkpoint.filesystem`): tensors in `*.distcp`, their index in
`.metadata` (a pickle), Megatron's own `common.pt` and `metadata.json`.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge import index_file
from megatron_bridge.errors import InputError
from megatron_bridge.index_file import Placed
from megatron_bridge.sources import torch_file
from megatron_bridge.sources.ranges import LocalFile, Part
from megatron_bridge.sources.stored import Stored, fill

if TYPE_CHECKING:
    import torch

Block = tuple[tuple[int, ...], tuple[int, ...]]
"""Offset and size."""
ByIndex = tuple[dict[tuple[int, ...], list[Block]], list[Block]]
"""Blocks of one slice by its index, and those that span several."""
MOST_OPEN = 64
"""Files kept open: a checkpoint may have thousands, and a process 1,024."""

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


def write_file(path: Path, chunks: Iterable[Chunk]) -> list[Placed]:
    """Write blocks one after the other into a new `.distcp` file; only one is in memory."""
    import torch

    placed = []
    with path.open("wb") as file:
        for chunk in chunks:
            start = file.tell()
            block = chunk.produce()
            try:
                torch.save(block, file)
            except RuntimeError as error:
                # PyTorch ends its archive on a disk that is full, and only tells of that.
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise
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

    entry = folder / "__empty_0.distcp"
    others = {}
    if empty := sorted(empty):
        torch.save([None], entry)  # a list, as Megatron has it
        others = dict.fromkeys(empty, index_file.Place(entry.name, 0, entry.stat().st_size))
    index_file.write(folder, placed, others)
    torch.save(dict(common or {}), folder / "common.pt")
    backend = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    backend |= {"common_backend": "torch", "common_backend_version": 1}
    (folder / "metadata.json").write_text(json.dumps(backend), encoding="utf-8")


class Reader:
    """The tensors of a `torch_dist` checkpoint, read by ranges."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._index = index_file.read(self.folder)
        self._shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        self._files: dict[str, LocalFile] = {}
        self._chunks: dict[tuple[str, tuple[int, ...]], Stored] = {}
        self._by_index: dict[
            tuple[str, int], tuple[dict[tuple[int, ...], list[Block]], list[Block]]
        ]
        self._by_index = {}
        self._lock = threading.Lock()

    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return global shape and dtype of every tensor by key; byte entries are left out."""
        import torch

        if not self._shapes:
            self._shapes = {
                key: (entry.size, getattr(torch, entry.dtype))
                for key, entry in self._index.tensors.items()
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

        entry = self._index.tensors[key]
        tail = entry.size[len(index) :]
        rows = (start, tail[0] if stop is None else stop) if tail else (0, 1)
        target = torch.empty((rows[1] - rows[0], *tail[1:]), dtype=self.shapes()[key][1])
        covered = 0
        for offset, size in self._near(key, index):
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

    def _near(self, key: str, index: tuple[int, ...]) -> Iterable[Block]:
        """Blocks that may have a part of a slice: of a mixture's tensor one in ten thousand."""
        depth = len(index)
        if (key, depth) not in self._by_index:
            narrow: dict[tuple[int, ...], list[Block]] = {}
            wide: list[Block] = []
            for offset, size in self._index.tensors[key].blocks:
                alone = all(n == 1 for n in size[:depth])
                (narrow.setdefault(offset[:depth], []) if alone else wide).append((offset, size))
            self._by_index[key, depth] = narrow, wide
        narrow, wide = self._by_index[key, depth]
        return itertools.chain(narrow.get(index, ()), wide)

    def has_entry(self, key: str) -> bool:
        """True for a key that is there, tensor or not."""
        return key in self._index.tensors or key in self._index.others

    def entry(self, key: str) -> Any:
        """Return what lies under a key that is no tensor: a tree of plain values."""
        return torch_file.load(self._part(key, None))

    def damage(self) -> list[str]:
        """Say which files are missing, or shorter than the index says."""
        ends: dict[str, int] = {}
        for place in self._index.places.values():
            ends[place.file] = max(ends.get(place.file, 0), place.start + place.length)
        found = []
        for name, end in sorted(ends.items()):
            path = self.folder / name
            if not path.is_file():
                found.append(f"the file {name}, which the index names")
            elif (size := path.stat().st_size) < end:
                found.append(f"a part of {name}: {size:,} of {end:,} bytes are there")
        return found

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._forget()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget(self) -> None:
        self._files.clear()
        self._chunks.clear()

    def _stored(self, key: str, offset: tuple[int, ...]) -> Stored:
        with self._lock:
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
        place = self._index.places.get((key, offset))
        if place is None:
            raise InputError(
                "The checkpoint's index does not say where a block lies",
                where=f"{self.folder}, {key}",
                expected="a file for every block",
                got=f"none for the one at {list(offset or ())}",
                fix="write the checkpoint again",
            )
        if place.transforms:
            raise InputError(
                "The checkpoint is compressed",
                where=self.folder,
                expected="plain tensors",
                got=place.transforms,
            )
        name = place.file
        if name != Path(name).name:
            raise InputError(
                "The checkpoint points outside its folder", where=self.folder, got=name
            )
        if name not in self._files:
            if len(self._files) >= MOST_OPEN:
                self._forget()  # each closes when the last thread that reads it has done so
            self._files[name] = LocalFile(self.folder / name)
        if self._files[name].size < place.start + place.length:
            raise InputError(
                "A file of the checkpoint is shorter than the checkpoint's index says",
                where=self.folder / name,
                expected=f"at least {place.start + place.length:,} bytes",
                got=f"{self._files[name].size:,} bytes",
                fix="copy the checkpoint here again",
            )
        return Part(self._files[name], place.start, place.length)


def is_model_key(key: str) -> bool:
    """True for a weight; False for optimizer and random states and Transformer Engine's extras."""
    return not key.startswith(_STATE) and not key.endswith("._extra_state")
