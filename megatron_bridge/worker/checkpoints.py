"""Megatron's `dist_checkpointing` on the ranks: weights in, and resume points in and out."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, tensor_parallel
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import (
    ShardedTensor,
    ShardedTensorFactory,
)
from megatron.core.models.gpt import GPTModel
from torch.distributed.checkpoint.api import CheckpointException

from megatron_bridge import checkpoint, index_file, torch_dist
from megatron_bridge.errors import InputError, MappingError

METADATA = {
    # Each data-parallel rank writes its own share; the other formats gather the whole state first.
    "distrib_optim_sharding_type": "dp_reshardable",
    "chained_optim_avoid_prefix": True,
}


def load_weights(model: GPTModel, folder: Path) -> None:
    """Fill `model` from a checkpoint, whatever layout wrote it; a collective call.

    Raises:
        MappingError: a weight is in the model and not in the checkpoint, or the other way round,
            or has another shape (the padding of the vocabulary apart).
    """
    weights = _weights(model)
    _check(weights, folder)
    loaded = _loaded(weights, folder)
    model.load_state_dict({name: loaded[name] for name in weights}, strict=False)


def save(folder: Path, model: GPTModel, optimizer: Any, scheduler: Any) -> None:
    """Write weights, optimizer, schedule and random states to a new folder; a collective call."""
    rank = torch.distributed.get_rank()
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    torch.distributed.barrier()
    dist_checkpointing.save(_state(model, optimizer, scheduler, loading=False), str(folder))
    torch.distributed.barrier()


def load(folder: Path, model: GPTModel, optimizer: Any, scheduler: Any) -> None:
    """Put everything that `save` wrote back in its place; a collective call.

    The gradients must be zero.
    """
    # Torch's AdamW has no state before its first step, and the distributed optimizer does not make
    # any when it loads: one step that changes nothing does.
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    state = _loaded(_state(model, optimizer, scheduler, loading=True), folder)
    model.load_state_dict(state["model"], strict=False)
    with torch.no_grad():
        optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    _set_random_states({name: value.clone() for name, value in state["rng"].items()})


def link_side_files(source: Path, target: Path) -> None:
    """Bring the Hugging Face side files (config, tokenizer) along, as hard links where possible."""
    for path in sorted(p for p in (source / checkpoint.HF_FILES).rglob("*") if p.is_file()):
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, place)
        except OSError:
            shutil.copyfile(path, place)


def _loaded(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Read a state through Megatron's reader; a pickle that names code is refused."""
    # The index is a pickle too, and Megatron's reader opens it without looking.
    index_file.read(folder)
    try:
        found: dict[str, Any] = dist_checkpointing.load(state, str(folder))
    except (pickle.UnpicklingError, CheckpointException) as error:
        failures = getattr(error, "failures", {0: (error, None)}).values()
        if not any(isinstance(cause, pickle.UnpicklingError) for cause, _ in failures):
            raise
        raise InputError(
            "The checkpoint names something that does not belong into one",
            where=folder,
            expected="tensors and plain values",
            got="a pickle that torch refuses to load",
            fix="do not open this checkpoint; it may have been made to run code",
        ) from error
    return found


def _weights(model: GPTModel) -> dict[str, Any]:
    # Transformer Engine adds `_extra_state` entries: FP8 scales, which no conversion knows.
    state: Mapping[str, Any] = model.sharded_state_dict(metadata=_metadata())
    return {
        name: value
        for name, value in state.items()
        if isinstance(value, (ShardedTensor, ShardedTensorFactory))
    }


def _state(model: GPTModel, optimizer: Any, scheduler: Any, *, loading: bool) -> dict[str, Any]:
    weights = _weights(model)
    return {
        "model": weights,
        "optimizer": optimizer.sharded_state_dict(
            weights, is_loading=loading, metadata=_metadata()
        ),
        "scheduler": scheduler.state_dict(),
        "rng": {
            name: ShardedTensor.from_rank_offsets(
                f"rng.{name}",
                value.contiguous(),
                (0, torch.distributed.get_rank(), torch.distributed.get_world_size()),
            )
            for name, value in _random_states().items()
        },
    }


def _metadata() -> dict[str, Any]:
    from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group

    metadata: dict[str, Any] = ensure_metadata_has_dp_cp_group(dict(METADATA))
    return metadata


def _random_states() -> dict[str, torch.Tensor]:
    states = {"torch": torch.random.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    tracker = tensor_parallel.get_cuda_rng_tracker().get_states()
    return states | {f"tracker.{name}": value for name, value in tracker.items()}


def _set_random_states(states: Mapping[str, torch.Tensor]) -> None:
    torch.random.set_rng_state(states["torch"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    tracked = {n.removeprefix("tracker."): s for n, s in states.items() if n.startswith("tracker.")}
    tensor_parallel.get_cuda_rng_tracker().set_states(tracked)


def _check(weights: Mapping[str, Any], folder: Path) -> None:
    """Compare the whole model's weights with the checkpoint's, name by name."""
    everyone: list[Any] = [None] * torch.distributed.get_world_size()
    mine = {part.key: tuple(part.global_shape) for part in _parts(weights)}
    torch.distributed.all_gather_object(everyone, mine)
    model = {key: shape for part in everyone for key, shape in part.items()}
    padded = {part.key for part in _parts(weights) if part.allow_shape_mismatch}
    stored = {
        key: shape
        for key, (shape, _) in torch_dist.Reader(folder).shapes().items()
        if torch_dist.is_model_key(key)
    }
    problems = [f"the checkpoint has no {key}" for key in sorted(model.keys() - stored.keys())]
    problems += [f"the model has no {key}" for key in sorted(stored.keys() - model.keys())]
    problems += [
        f"{key} is {stored[key]} in the checkpoint and {model[key]} in the model"
        for key in sorted(model.keys() & stored.keys())
        if (model[key][1:] if key in padded else model[key])
        != (stored[key][1:] if key in padded else stored[key])
    ]
    if problems:
        raise MappingError(
            "The checkpoint does not fit the model",
            where=folder,
            expected="every weight once on both sides, with the same shape",
            got="; ".join(problems[:6]) + (" …" if len(problems) > 6 else ""),
            fix="import the model again, with its own config.json",
        )


def _parts(weights: Mapping[str, Any]) -> Iterator[ShardedTensor]:
    for value in weights.values():
        if isinstance(value, ShardedTensorFactory):
            yield from nested_values(value.build())
        else:
            yield value
