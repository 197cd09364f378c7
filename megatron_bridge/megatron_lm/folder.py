"""A directory that Megatron-LM wrote: which iteration, which format, which arguments, its tensors.

It may be the folder given to `--save`, whose `latest_checkpointed_iteration.txt` names the newest
checkpoint, or one checkpoint's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from megatron_bridge import checkpoint
from megatron_bridge.errors import InputError
from megatron_bridge.megatron_lm.ranks import Ranks
from megatron_bridge.sources import torch_file
from megatron_bridge.sources.ranges import LocalFile
from megatron_bridge.tensors import Tensors
from megatron_bridge.torch_dist import Reader

Format = Literal["torch_dist", "torch"]

LATEST = "latest_checkpointed_iteration.txt"
_ITERATION = re.compile(r"iter_(\d+)")
_STATE = re.compile(r"(?:chained_\d+\.)?optimizer\.(?:state\.)?(\w+)\.")
_MOMENTS = {"exp_avg", "exp_avg_sq", "momentum_buffer", "fp32_from_fp16_params"}
_COMMON = "common_state/shard_0_1"
"""The byte entry of a `torch_dist` checkpoint that has what lay in `common.pt` before."""
_OTHERS = {
    "torch_dcp": "write it anew with --ckpt-format torch_dist",
    "fsdp_dtensor": "write it anew with --ckpt-format torch_dist, without Megatron's FSDP",
    "zarr": "load it with a Megatron-LM of its time, and save it with --ckpt-format torch_dist",
}
"""Formats that are not read, and what to do."""


@dataclass(frozen=True)
class Run:
    """One checkpoint of a run of Megatron-LM."""

    folder: Path
    """The checkpoint's own folder."""
    format: Format
    iteration: int | None
    arguments: dict[str, Any]
    """The run's arguments by name, empty where the checkpoint has none."""


def is_ours(folder: Path) -> bool:
    """True for a checkpoint that this package wrote, finished or not."""
    return (folder / checkpoint.MARK).exists() or (folder / checkpoint.HF_FILES).is_dir()


def is_run(folder: Path) -> bool:
    """True for a folder that looks like Megatron-LM's, readable or not."""
    known = (folder / LATEST).exists() or bool(_checkpoints(folder)) or _is_of_a_rank(folder)
    return known or _format(folder) is not None


def refuse_a_checkpoint(folder: Path) -> None:
    """Refuse a checkpoint where a Hugging Face folder is wanted.

    Raises:
        InputError: it is one.
    """
    if not (folder / "config.json").exists() and (is_ours(folder) or is_run(folder)):
        raise InputError(
            "This is a checkpoint, not a Hugging Face folder",
            where=folder,
            expected="config.json beside weights",
            got="a checkpoint of ours" if is_ours(folder) else "what Megatron-LM wrote",
            fix=f"did you mean export? python -m megatron_bridge export {folder} OUT",
        )


def open_run(folder: Path) -> Run:
    """Find the checkpoint in a folder and read its arguments.

    Args:
        folder: what was given to `--save`, or one `iter_*` folder in it.

    Raises:
        InputError: no checkpoint, more than one and none named, a format that is not read, or a
            damaged file.
    """
    place = _place(Path(folder).resolve())
    kind = _format(place)
    if kind is None:
        raise InputError(
            "The folder holds no checkpoint of Megatron-LM",
            where=place,
            expected="iter_NNNNNNN folders, mp_rank_* folders, or .metadata beside *.distcp",
            got=_content(place),
            fix=f"this is the folder of one rank; give the one that it lies in, {place.parent}"
            if _is_of_a_rank(place)
            else "give the folder that Megatron-LM wrote with --save, or one iter_* folder in it",
        )
    if kind == "torch":
        with Ranks(place) as ranks:
            return Run(place, "torch", ranks.iteration, dict(ranks.arguments))
    if kind != "torch_dist":
        raise InputError(
            f"Checkpoints in the format {kind} are not read",
            where=place,
            expected="torch_dist, or torch",
            got=kind,
            fix=_OTHERS.get(kind, "write it anew with --ckpt-format torch_dist"),
        )
    common = _common(place)
    named = _ITERATION.fullmatch(place.name)
    iteration = common.get("iteration", int(named[1]) if named else None)
    return Run(place, "torch_dist", iteration, dict(common.get("args") or {}))


def tensors(folder: Path) -> Tensors:
    """Open the tensors of a checkpoint's own folder, in either format, ours or Megatron-LM's."""
    return Ranks(folder) if _format(folder) == "torch" else Reader(folder)


def optimizer_states(run: Run) -> set[str]:
    """Return what the run's optimizer keeps of each parameter, by name; empty without one."""
    if run.format == "torch_dist":
        with Reader(run.folder) as reader:
            return states(reader.shapes())
    first = min(run.folder.glob("mp_rank_*"))
    paths = [first / "model_optim_rng.pt", *sorted(first.glob("*optim.pt"))]
    found: set[str] = set()
    for path in paths:
        if path.is_file():
            found |= _states(_loaded(path))
    return found


def states(keys: Iterable[str]) -> set[str]:
    """Return what an optimizer keeps of each parameter, from the keys of a `torch_dist`."""
    return {found[1] for key in keys if (found := _STATE.match(key))}


def _states(tree: Any) -> set[str]:
    if not isinstance(tree, dict):
        return set()
    names = _MOMENTS & {name for name in tree if isinstance(name, str)}
    return names.union(*(_states(value) for key, value in tree.items() if key != "model"))


def _loaded(path: Path) -> Any:
    file = LocalFile(path)
    try:
        return torch_file.load(file)
    finally:
        file.close()


def _place(folder: Path) -> Path:
    latest = folder / LATEST
    if latest.is_file():
        word = latest.read_text(encoding="utf-8", errors="replace").strip()
        name = f"iter_{int(word):07d}" if word.isdecimal() else word
        if name and name == Path(name).name and (folder / name).is_dir():
            return folder / name
        found = " or ".join(_checkpoints(folder))
        raise InputError(
            f"{LATEST} names a checkpoint that is not there",
            where=latest,
            expected=found or "an iter_* folder, of which there is none",
            got=repr(word[:40]),
            fix="give the folder of the checkpoint itself",
        )
    names = _checkpoints(folder)
    if names:
        raise InputError(
            f"The folder has no {LATEST}, which says which checkpoint is whole",
            where=folder,
            expected=f"{LATEST}, which Megatron-LM writes when a checkpoint is finished",
            got=f"{len(names)} checkpoints: {', '.join(names[:8])}",
            fix=f"name the one that you mean, such as {folder / names[-1]}",
        )
    return folder


def _checkpoints(folder: Path) -> list[str]:
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(p.name for p in paths if _ITERATION.fullmatch(p.name) and p.is_dir())


def _is_of_a_rank(folder: Path) -> bool:
    return folder.name.startswith("mp_rank_") and folder.is_dir()


def _format(folder: Path) -> str | None:
    if not folder.is_dir():
        return None
    if any(folder.glob("mp_rank_*")):
        return "torch"
    try:
        backend = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
        return str(backend["sharded_backend"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if (folder / ".metadata").is_file():
        names = (folder / ".metadata").read_bytes()
        # Both are torch's plain distributed checkpoints; Megatron's FSDP names the module so.
        return "fsdp_dtensor" if b"model.module." in names else "torch_dcp"
    return "zarr" if any(folder.glob("*/.zarray")) else None


def _common(folder: Path) -> dict[str, Any]:
    """What all ranks have in common: arguments, iteration, schedules."""
    path = folder / "common.pt"
    if path.is_file():
        found = _loaded(path)
    else:
        with Reader(folder) as reader:
            found = reader.entry(_COMMON) if reader.has_entry(_COMMON) else {}
        found = found[0] if isinstance(found, list) and found else found
    return found if isinstance(found, dict) else {}


def _content(folder: Path) -> str:
    if not folder.is_dir():
        return "no such folder"
    names = sorted(path.name for path in folder.iterdir())
    return f"{', '.join(names[:6])}{', ...' if len(names) > 6 else ''}" or "an empty folder"
