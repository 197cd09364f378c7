"""A Megatron-LM checkpoint in the old `torch` layout to `torch_dist`, optimizer included.

`torch_dist` does not depend on the layout of the run that wrote it, and Megatron-LM loads it at any
other. No model is built and no process group: a block of a tensor is read from the ranks' files and
written. A distributed optimizer's state gets the form that Megatron-LM calls `fully_reshardable`.

Megatron-LM's loss counts the rows that pad its vocabulary, and their number depends on the layout:
the same `--make-vocab-size-divisible-by` times tensor parallelism keeps it.
"""

from __future__ import annotations

import functools
import itertools
import math
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge import torch_dist
from megatron_bridge.errors import ConfigError
from megatron_bridge.journal import Journal, unfinished
from megatron_bridge.megatron_lm import extra_states
from megatron_bridge.megatron_lm.folder import LATEST, open_run
from megatron_bridge.megatron_lm.merging import Merged, merge
from megatron_bridge.megatron_lm.optimizer import State, read_state
from megatron_bridge.megatron_lm.ranks import Ranks, read
from megatron_bridge.runner import Progress, run, threads
from megatron_bridge.sources.inert import Named
from megatron_bridge.sources.stored import BLOCK_BYTES, Stored
from megatron_bridge.transfer import GROUP_BYTES

if TYPE_CHECKING:
    import torch

_RESHARDABLE = "fully_reshardable"
"""Megatron's name for a distributed optimizer's state that has the shapes of the parameters."""

RELEASE = "release"
VERSION = 1
"""Raised when the same checkpoint must give other bytes."""

Piece = tuple[str, tuple[int, ...], int, int]
"""A tensor's key, the index of one of its slices, and rows of it."""


@dataclass(frozen=True)
class Source:
    """What is read: the model's tensors and the optimizer's, by the keys that they get."""

    ranks: Ranks
    state: State | None
    tensors: dict[str, Merged]

    @classmethod
    def open(cls, folder: Path) -> Source:
        """Open a checkpoint's own folder."""
        ranks = Ranks(folder)
        state = read_state(ranks.files)
        tensors = dict(ranks.merged)
        for kind, trees in (state.tensors if state else {}).items():
            for key, one in merge(ranks.files, trees).items():
                tensors[f"optimizer.state.{kind}.{key}"] = one
        return cls(ranks, state, tensors)


def reshard(
    folder: Path, out: Path, progress: Progress | None = None, memory: int | None = None
) -> dict[str, Any]:
    """Write a checkpoint of Megatron-LM anew, so that it loads at any layout.

    Args:
        folder: what was given to `--save`, or one `iter_*` folder in it, in the `torch` format.
        out: a new or empty folder, which Megatron-LM takes as `--load`.
        progress: called as `progress(done, total, unit="tensors")`.
        memory: a ceiling in bytes, by default half of the machine's.

    Returns:
        What was written, and `left_out`: what `torch_dist` has no place for, and how much of it.

    Raises:
        ConfigError: the checkpoint is in `torch_dist` already, or `out` is not empty.
        InputError, MappingError: the checkpoint is incomplete, damaged or of an unknown kind.
    """
    found = open_run(Path(folder))
    if found.format != "torch":
        raise ConfigError(
            "The checkpoint is in torch_dist already",
            where=found.folder,
            expected="the torch format: mp_rank_* folders",
            got=found.format,
            fix="load it with Megatron-LM as it is, at any layout",
        )
    source = Source.open(found.folder)
    try:
        return _write(source, Path(out), progress, memory)
    finally:
        source.ranks.close()


def _write(
    source: Source, out: Path, progress: Progress | None, memory: int | None
) -> dict[str, Any]:
    folder, iteration = source.ranks.folder, source.ranks.iteration or 0
    size = sum(math.prod(one.shape) * one.dtype.itemsize for one in source.tensors.values())
    groups = list(_groups(source.tensors))
    identity = {"reshard": str(folder), "files": _files(folder), "version": VERSION}
    with unfinished(out, identity) as (partial, journal):
        # A converted model, without a number of steps, lies in a folder of this name.
        release = folder.name == RELEASE
        place = partial / (RELEASE if release else f"iter_{iteration:07d}")
        place.mkdir(exist_ok=True)
        todo = [n for n in range(len(groups)) if journal.get(f"write-{n}") is None]
        work = functools.partial(_write_group, source, place)
        done = len(groups) - len(todo)
        results = run(work, [(n, groups[n]) for n in todo], threads(memory, size))
        for number, blocks in zip(todo, results, strict=True):
            journal.note(f"write-{number}", blocks)
            done += 1
            if progress is not None:
                total = len(source.tensors)
                progress(total * done // len(groups), total, unit="tensors")
        common, left_out = _common(source, iteration)
        files, merged = source.ranks.files, source.ranks.merged
        empty = extra_states.keys(files, source.ranks.trees, merged)
        torch_dist.write_index(place, _placed(journal, len(groups)), common, empty)
        latest = RELEASE if release else str(iteration)
        (partial / LATEST).write_text(latest, encoding="utf-8")
    return {
        "iteration": iteration,
        "tensors": len(source.ranks.merged),
        "optimizer_tensors": len(source.tensors) - len(source.ranks.merged),
        "bytes": size,
        "left_out": left_out,
    }


def _files(folder: Path) -> list[list[Any]]:
    """Name, size, time of change and inode of every file."""
    stats = [(path, path.stat()) for path in sorted(folder.rglob("*.pt"))]
    return [[str(path), s.st_size, s.st_mtime_ns, s.st_ino] for path, s in stats]


def _groups(tensors: Mapping[str, Merged]) -> Iterator[list[Piece]]:
    """Yield what each file gets."""
    group: list[Piece] = []
    filled = 0
    for key, one in tensors.items():
        for index in itertools.product(*map(range, one.shape[: one.depth])):
            tail = one.shape[one.depth :]
            row = math.prod(tail[1:]) * one.dtype.itemsize
            height = max(1, BLOCK_BYTES // max(1, row))
            rows = tail[0] if tail else 1
            for start in range(0, rows, height):
                stop = min(start + height, rows)
                group.append((key, index, start, stop))
                filled += (stop - start) * row
                if filled >= GROUP_BYTES:
                    yield group
                    group, filled = [], 0
    if group:
        yield group


def _write_group(
    source: Source, place: Path, numbered: tuple[int, list[Piece]]
) -> list[dict[str, Any]]:
    number, group = numbered
    chunks = [_chunk(source, piece) for piece in group]
    placed = torch_dist.write_file(place / f"__{number}_0.distcp", chunks)
    return [block.model_dump() for block in placed]


def _chunk(source: Source, piece: Piece) -> torch_dist.Chunk:
    key, index, start, stop = piece
    one = source.tensors[key]
    tail = one.shape[one.depth :]
    ones = (1,) * len(index)

    def produce() -> torch.Tensor:
        values = read(source.tensors, folder, key, index, start, stop if tail else None)
        return values.reshape(*ones, *values.shape)

    folder = source.ranks.folder
    return torch_dist.Chunk(
        key=key,
        offset=(*index, start, *(0 for _ in tail[1:])) if tail else index,
        size=(*ones, stop - start, *tail[1:]) if tail else ones,
        global_size=one.shape,
        dtype=one.dtype,
        produce=produce,
    )


def _placed(journal: Journal, count: int) -> Iterator[torch_dist.Placed]:
    for number in range(count):
        yield from (torch_dist.Placed(**block) for block in journal.get(f"write-{number}"))


def _common(source: Source, iteration: int) -> tuple[dict[str, Any], dict[str, int]]:
    """What all ranks have in common, and how much of what was left out."""
    files, state = source.ranks.files, source.state
    kept = {n: v for n, v in files.arguments.items() if not isinstance(v, Named)}
    left_out = {
        "random states of ranks": sum("rng_state" in tree for tree in files.trees.values()),
        "data loader states of reruns": sum(
            "rerun_state_machine" in tree for tree in files.trees.values()
        ),
        "arguments that are objects": len(files.arguments) - len(kept),
        "extra states of Transformer Engine": source.ranks.extra_states,
    }
    kept |= {"ckpt_format": "torch_dist", "use_dist_ckpt": True, "no_save_rng": True}
    kept |= {"no_save_optim": state is None, "ckpt_fully_parallel_save": True}
    content: dict[str, Any] = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    common: dict[str, Any] = {
        "args": Namespace(**_values(kept)),
        "checkpoint_version": files.first().get("checkpoint_version", 3.0),
        "iteration": iteration,
        "content_metadata": content,
    }
    for name in ("opt_param_scheduler", "num_floating_point_operations_so_far"):
        if name in files.first():
            common[name] = _values(files.first()[name])
    if state is not None:
        if state.distributed:
            content["distrib_optim_sharding_type"] = _RESHARDABLE
        optimizers = [_optimizer(state, number) for number in range(len(state.groups))]
        common["optimizer"] = optimizers[0] if len(optimizers) == 1 else dict(enumerate(optimizers))
    return common, {name: count for name, count in left_out.items() if count}


def _optimizer(state: State, number: int) -> dict[str, Any]:
    """What an optimizer has but tensors of parameters."""
    inner: dict[str, Any] = {"param_groups": _values(state.groups[number])}
    step = state.steps[number]
    if not state.distributed:
        inner["state"] = {} if step is None else {"common_step": step}
    found: dict[str, Any] = {"optimizer": inner} if state.wrapped else inner
    if state.distributed:
        found["param_state_sharding_type"] = _RESHARDABLE
    return found | dict(_values(state.others[number]))


def _values(tree: Any) -> Any:
    """A tree of plain values, its tensors read."""
    if isinstance(tree, Stored):
        return tree.read()
    if isinstance(tree, Mapping):
        return {key: _values(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_values(value) for value in tree)
    return tree
