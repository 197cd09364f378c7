"""What `torch_dist` keeps once for all ranks: arguments, counters, the optimizer's groups."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from megatron_bridge.megatron_lm.optimizer import State
from megatron_bridge.megatron_lm.ranks import Ranks
from megatron_bridge.sources.inert import Named
from megatron_bridge.sources.stored import Stored

_RESHARDABLE = "fully_reshardable"
"""Megatron's name for a distributed optimizer's state that has the shapes of the parameters."""


def of_run(
    ranks: Ranks, state: State | None, iteration: int
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return what all ranks have in common, and how much of what was left out."""
    files = ranks.files
    kept = {n: v for n, v in files.arguments.items() if not isinstance(v, Named)}
    left_out = {
        "random states of ranks": sum("rng_state" in tree for tree in files.trees.values()),
        "data loader states of reruns": sum(
            "rerun_state_machine" in tree for tree in files.trees.values()
        ),
        "arguments that are objects": len(files.arguments) - len(kept),
        "extra states of Transformer Engine": ranks.extra_states,
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
        return {_values(key): _values(value) for key, value in tree.items()}
    if isinstance(tree, str):
        # A pickle tells one string used twice from two that are equal.
        return sys.intern(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(_values(value) for value in tree)
    return tree
