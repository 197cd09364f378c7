"""The files of the old `torch` layout: one `mp_rank_*` folder for each part of the model.

A folder's name has the tensor rank, then the pipeline rank where there are stages, then the expert
rank where experts are spread (Megatron-LM's `get_checkpoint_name`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from megatron_bridge.errors import InputError
from megatron_bridge.sources import torch_file
from megatron_bridge.sources.ranges import LocalFile

MODEL_FILE, OPTIMIZER_FILE = "model_optim_rng.pt", "distrib_optim.pt"
_FOLDER = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?")
_CHUNK = re.compile(r"model\d*")


class Rank(NamedTuple):
    """Which part of the model."""

    pipeline: int
    expert: int
    tensor: int


class Book:
    """A file that is open only while it is read: a run may have thousands, a process 1,024."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(LocalFile(path)) as file:
            self.name, self.size, self.state = file.name, file.size, file.state

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        with closing(LocalFile(self._path)) as file:
            return file.read(offset, length)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`."""
        with closing(LocalFile(self._path)) as file:
            file.read_into(offset, target)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class RankFiles:
    """What the folders of a checkpoint hold, tensors left where they lie."""

    folder: Path
    arguments: dict[str, Any] = field(default_factory=dict)
    places: dict[Rank, Path] = field(default_factory=dict)
    trees: dict[Rank, dict[str, Any]] = field(default_factory=dict)

    def load(self, path: Path) -> Any:
        """Return the tree of values in a file."""
        return torch_file.load(Book(path))

    def first(self) -> dict[str, Any]:
        """What the first rank's file holds."""
        return self.trees[min(self.trees)]

    def size(self, axis: str) -> int:
        """Number of ranks along an axis of `Rank`."""
        numbers: list[int] = [getattr(rank, axis) for rank in self.places]
        return 1 + max(numbers)

    def experts_are_split(self) -> bool:
        """True where the matrices of an expert are split as those of the attention are."""
        split = self.arguments.get("expert_tensor_parallel_size")
        return split in (None, self.size("tensor"))


def open_files(folder: Path) -> RankFiles:
    """Open the folders of a checkpoint.

    Raises:
        InputError: there is none, one is missing, or a file is damaged or holds something else.
    """
    names = {path.name: path for path in sorted(folder.glob("mp_rank_*")) if path.is_dir()}
    numbers = {name: found.groups() for name in names if (found := _FOLDER.fullmatch(name))}
    if not numbers:
        raise InputError(
            "The folder holds no checkpoint in the torch format",
            where=folder,
            expected="mp_rank_* folders",
            got="none",
        )
    files = RankFiles(folder)
    files.arguments = dict(_tree(files, names[min(numbers)] / MODEL_FILE).get("args") or {})
    for name, parts in numbers.items():
        files.places[_rank(parts, files.arguments)] = names[name]
    _check_complete(files)
    for rank, place in files.places.items():
        files.trees[rank] = _tree(files, place / MODEL_FILE)
    return files


def _tree(files: RankFiles, path: Path) -> dict[str, Any]:
    """Return what a rank's model file holds: tables, as far as they are looked into."""
    tree = files.load(path)
    if not _is_table(tree) or not any(_CHUNK.fullmatch(key) for key in tree):
        got = ", ".join(map(str, tree)) if isinstance(tree, Mapping) else type(tree).__name__
        raise InputError(
            "A rank's file holds no model",
            where=path,
            expected="a table with model, or model0 and so on",
            got=got[:80] or "an empty table",
        )
    wrong = [key for key, part in tree.items() if not _fits(key, part)]
    if wrong:
        raise InputError(
            "A part of a rank's file is not what Megatron-LM writes",
            where=f"{path}, {wrong[0]}",
            expected="a number" if wrong[0] == "iteration" else "names with values",
            got=type(tree[wrong[0]]).__name__,
            fix="copy the checkpoint here again",
        )
    return dict(tree)


def _fits(key: str, part: Any) -> bool:
    if key == "iteration":
        return isinstance(part, int)
    return (
        _is_table(part) if _CHUNK.fullmatch(key) else key != "args" or not part or _is_table(part)
    )


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _rank(parts: tuple[str | None, ...], arguments: Mapping[str, Any]) -> Rank:
    tensor, *others = (int(part) for part in parts if part is not None)
    if len(others) == 2:
        return Rank(others[0], others[1], tensor)
    if not others:
        return Rank(0, 0, tensor)
    # One number alone is a pipeline rank, unless there are no stages.
    stages = arguments.get("pipeline_model_parallel_size") or 1
    experts = arguments.get("expert_model_parallel_size") or 1
    if stages == 1 and experts > 1:
        return Rank(0, others[0], tensor)
    return Rank(others[0], 0, tensor)


def _check_complete(files: RankFiles) -> None:
    """Refuse a checkpoint that lacks a folder, by its name."""
    axes = ("pipeline", "expert", "tensor")
    sizes = [
        max(files.size(axis), int(files.arguments.get(f"{word}_model_parallel_size") or 1))
        for axis, word in zip(axes, axes, strict=True)
    ]
    wanted = [Rank(p, e, t) for p in range(sizes[0]) for e in range(sizes[1])
              for t in range(sizes[2])]  # fmt: skip
    missing = [rank for rank in wanted if rank not in files.places]
    if not files.experts_are_split():
        # Whole experts: a tensor rank is where one of its data-parallel copies wrote.
        found = files.places
        missing = [
            rank
            for rank in missing
            if not any(r.pipeline == rank.pipeline and r.expert == rank.expert for r in found)
            or not any(r.pipeline == rank.pipeline and r.tensor == rank.tensor for r in found)
        ]
    if missing:
        names = sorted(_name(rank, sizes) for rank in missing)
        raise InputError(
            "The checkpoint lacks the folder of a rank",
            where=files.folder,
            expected=f"{len(wanted)} folders: tensor {sizes[2]} x pipeline {sizes[0]} x "
            f"expert {sizes[1]} parallel",
            got=f"no {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}",
            fix="copy the whole checkpoint here",
        )


def _name(rank: Rank, sizes: list[int]) -> str:
    name = f"mp_rank_{rank.tensor:02d}"
    name += f"_{rank.pipeline:03d}" if sizes[0] > 1 else ""
    return name + (f"_{rank.expert:03d}" if sizes[1] > 1 else "")
