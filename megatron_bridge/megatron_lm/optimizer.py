"""The optimizer's state in the old `torch` layout, by the names of the parameters it belongs to.

The files number parameters: in each group of the optimizer they come in the model's order, and a
group says what it is for (weight decay or none, experts or not).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from megatron_bridge.errors import InputError
from megatron_bridge.megatron_lm import buffers
from megatron_bridge.megatron_lm.merging import Merged, merge
from megatron_bridge.megatron_lm.naming import chunks, is_expert
from megatron_bridge.megatron_lm.rank_files import MODEL_FILE, OPTIMIZER_FILE, Rank, RankFiles
from megatron_bridge.megatron_lm.splits import BUFFERS
from megatron_bridge.sources.stored import Stored

if TYPE_CHECKING:
    import torch

MASTERS = "fp32_param"
"""Megatron's name for fp32 copies of half-precision weights, where each is a tensor."""
_OTHERS = ("grad_scaler",)
_WORDS = ("embedding.word_embeddings.", "output_layer.")


class Parameter(NamedTuple):
    """A parameter of a rank: its chunk, its name there, and its values."""

    chunk: int
    name: str
    values: Stored


@dataclass
class State:
    """What an optimizer remembers."""

    distributed: bool
    tensors: dict[str, dict[Rank, list[dict[str, Stored]]]] = field(default_factory=dict)
    """By the optimizer's name for it, such as `exp_avg`: tensors of each rank's chunks."""
    groups: list[list[dict[str, Any]]] = field(default_factory=list)
    """Of each optimizer, its groups' hyperparameters."""
    steps: list[float | torch.Tensor | None] = field(default_factory=list)
    """Of each optimizer, how often it stepped, where the groups do not say it."""
    others: list[dict[str, Any]] = field(default_factory=list)
    """Of each optimizer, what belongs to no parameter, such as the loss scale."""
    wrapped: bool = False
    """Half-precision weights: the optimizer's own state is one level deeper."""

    def add(self, rank: Rank, width: int, kind: str, parameter: Parameter, value: Stored) -> None:
        """Note one tensor of a parameter."""
        parts = self.tensors.setdefault(kind, {}).setdefault(rank, [{} for _ in range(width)])
        parts[parameter.chunk][parameter.name] = value


def read_state(files: RankFiles) -> State | None:
    """Return the optimizer's state; None where the checkpoint has none.

    Raises:
        InputError: some ranks lack it, or it cannot be assigned to the parameters.
    """
    distributed = any((place / OPTIMIZER_FILE).is_file() for place in files.places.values())
    lacking = [rank for rank, tree in files.trees.items() if "optimizer" not in tree]
    if len(lacking) == len(files.trees) and not distributed:
        return None
    if lacking:
        raise _lost(files, "an optimizer in each rank's file", lacking, MODEL_FILE)
    if files.arguments.get("use_distributed_optimizer") and not distributed:
        raise InputError(
            "The distributed optimizer's own files are not there",
            where=files.folder,
            expected=f"{OPTIMIZER_FILE} beside the model",
            got="none",
            fix="copy the whole checkpoint here, or convert the weights alone",
        )
    state = State(distributed)
    for rank, tree in sorted(files.trees.items()):
        parameters = _parameters(tree)
        optimizers = _optimizers(tree["optimizer"])
        if not all(map(_is_optimizer, optimizers)):
            raise _unassigned(files, rank, "optimizers with param_groups", "something else")
        experts = any(group["is_expert_parallel"] for one in optimizers for group in _groups(one))
        if distributed:
            place = files.places[rank] / OPTIMIZER_FILE
            found = files.load(place) if place.is_file() else None
            for parameter, kind, value in buffers.assign(
                files, rank, found, parameters, experts, len(optimizers)
            ):
                state.add(rank, len(chunks(tree)), kind, parameter, value)
        for one in optimizers:
            if not distributed:
                _assign(files, rank, state, one, parameters, experts)
        if rank == min(files.trees):
            state.wrapped = "optimizer" in optimizers[0]
            state.groups = [[_plain(group) for group in _groups(one)] for one in optimizers]
            state.others = [{k: v for k, v in one.items() if k in _OTHERS} for one in optimizers]
            state.steps = [None if distributed else _step(files, one) for one in optimizers]
    if distributed and not state.tensors:
        raise _lost(files, "tensors of the distributed optimizer", files.trees, OPTIMIZER_FILE)
    return state


def merged(files: RankFiles, state: State, model: Mapping[str, Merged]) -> dict[str, Merged]:
    """Return the state of all ranks, by the keys that `torch_dist` has for it.

    Args:
        files: the checkpoint.
        state: what each rank has.
        model: the weights that it belongs to, by Megatron's keys.

    Raises:
        InputError: a weight, or a rank's part of one, has no state.
    """
    found: dict[str, Merged] = {}
    for kind, trees in state.tensors.items():
        _check_ranks(files, state, kind)
        tensors = merge(files, trees)
        wanted = {
            key: one.shape
            for key, one in model.items()
            if not key.endswith(_ENDS) and _has_state(kind, one.dtype)
        }
        got = {key: one.shape for key, one in tensors.items()}
        if wanted != got:
            key = min(k for k in wanted | got if wanted.get(k) != got.get(k))
            raise InputError(
                "The optimizer's state does not fit the weights",
                where=f"{files.folder}, {kind} of {key}",
                expected=list(wanted.get(key, ())) or "none",
                got=list(got.get(key, ())) or "none",
                fix="copy the whole checkpoint here, of one iteration",
            )
        found |= {f"optimizer.state.{kind}.{key}": one for key, one in tensors.items()}
    return found


def _check_ranks(files: RankFiles, state: State, kind: str) -> None:
    """Refuse a state that no rank has for a parameter, or for some rank's part of one."""
    split = files.experts_are_split()

    def part(rank: Rank, chunk: int, name: str) -> tuple[Any, ...]:
        if not is_expert(name):
            return rank.pipeline, None, rank.tensor, chunk, name
        return rank.pipeline, rank.expert, rank.tensor if split else None, chunk, name

    held = {
        part(rank, number, name)
        for rank, parts in state.tensors[kind].items()
        for number, names in enumerate(parts)
        for name in names
    }
    lacking: dict[tuple[Any, ...], Rank] = {}
    for rank, tree in sorted(files.trees.items()):
        for one in _parameters(tree):
            place = part(rank, one.chunk, one.name)
            if place not in held and _has_state(kind, one.values.dtype):
                lacking.setdefault(place, rank)
    if lacking:
        expected = f"{kind} of {next(iter(lacking))[-1]}, and {len(lacking) - 1} more"
        file = OPTIMIZER_FILE if state.distributed else MODEL_FILE
        raise _lost(files, expected, set(lacking.values()), file)


def _has_state(kind: str, dtype: torch.dtype) -> bool:
    """True for any parameter, but weights in full precision need no copies."""
    return kind != MASTERS or dtype.itemsize == 2


def _parameters(tree: Mapping[str, Any]) -> list[Parameter]:
    return [
        Parameter(number, name, value)
        for number, chunk in enumerate(chunks(tree))
        for name, value in chunk.items()
        if isinstance(value, Stored) and "_extra_state" not in name and not name.endswith(_ENDS)
    ]


_ENDS = tuple(BUFFERS)


def _optimizers(found: Any) -> list[dict[str, Any]]:
    """The optimizers that a chained one is made of."""
    if isinstance(found, Mapping) and all(isinstance(key, int) for key in found):
        found = [found[key] for key in sorted(found)]
    return list(found) if isinstance(found, Sequence) else [found]


def _is_optimizer(one: Any) -> bool:
    if not isinstance(one, Mapping) or not isinstance(_inner(one), Mapping):
        return False
    groups = _inner(one).get("param_groups")
    return isinstance(groups, list) and all(isinstance(group, Mapping) for group in groups)


def _inner(one: Mapping[str, Any]) -> Mapping[str, Any]:
    inner: Mapping[str, Any] = one.get("optimizer", one.get("optimizer_state_dict", one))
    return inner


def _groups(one: Mapping[str, Any]) -> list[dict[str, Any]]:
    groups = _inner(one)["param_groups"]
    return [{"is_expert_parallel": False, **group} for group in groups]


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _assign(
    files: RankFiles,
    rank: Rank,
    state: State,
    one: Mapping[str, Any],
    parameters: list[Parameter],
    experts: bool,
) -> None:
    """Note what a plain optimizer knows of each parameter."""
    width = len(chunks(files.trees[rank]))
    known = _inner(one).get("state", {})
    masters = iter(one.get("fp32_from_fp16_params", ()))
    for group, members in _members(_groups(one), parameters, experts):
        numbers, copies = group["params"], iter(next(masters, ()))
        if len(numbers) != len(members):
            raise _unassigned(files, rank, f"{len(members)}", f"{len(numbers)} in a group")
        for number, parameter in zip(numbers, members, strict=True):
            tensors = {k: v for k, v in known.get(number, {}).items() if k != "step"}
            if one.get("fp32_from_fp16_params") and parameter.values.dtype.itemsize == 2:
                tensors[MASTERS] = next(copies)
            for kind, value in tensors.items():
                if not isinstance(value, Stored) or value.shape != parameter.values.shape:
                    shown = list(value.shape) if isinstance(value, Stored) else value
                    wanted = f"{kind} of {parameter.name}, {list(parameter.values.shape)}"
                    raise _unassigned(files, rank, wanted, f"{shown}")
                state.add(rank, width, kind, parameter, value)


def _members(
    groups: list[dict[str, Any]], parameters: list[Parameter], experts: bool
) -> Iterator[tuple[dict[str, Any], list[Parameter]]]:
    """Yield each group with its parameters, in order."""
    decays = any(group.get("wd_mult") == 0.0 for group in groups)
    decoupled = any(group.get("is_decoupled_lr") for group in groups)
    for group in groups:
        members = [
            one
            for one in parameters
            if (not experts or is_expert(one.name) == group["is_expert_parallel"])
            and (not decays or _undecayed(one) == (group.get("wd_mult") == 0.0))
            and (not decoupled or one.name.startswith(_WORDS) == bool(group["is_decoupled_lr"]))
        ]
        yield group, members


def _undecayed(parameter: Parameter) -> bool:
    return parameter.name.endswith(".bias") or len(parameter.values.shape) == 1


def _step(files: RankFiles, one: Mapping[str, Any]) -> Any:
    """The number of steps that all parameters share."""
    steps = [known["step"] for known in _inner(one).get("state", {}).values() if "step" in known]
    values = [step.read() if isinstance(step, Stored) else step for step in steps]
    if len({float(value) for value in values}) > 1:
        raise InputError(
            "The optimizer's parameters have made different numbers of steps",
            where=files.folder,
            expected="one number; Megatron's torch_dist has no place for more",
            got=sorted({float(value) for value in values}),
        )
    return values[0] if values else None


def _lost(files: RankFiles, expected: str, ranks: Iterable[Rank], file: str) -> InputError:
    names = [f"{files.places[rank].name}/{file}" for rank in sorted(ranks)]
    return InputError(
        "Some ranks lack the optimizer's state",
        where=files.folder,
        expected=expected,
        got=f"none in {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}",
        fix="copy the whole checkpoint here, or convert the weights alone",
    )


def _unassigned(files: RankFiles, rank: Rank, expected: str, got: str) -> InputError:
    return InputError(
        "The optimizer's state cannot be assigned to the parameters",
        where=files.places[rank],
        expected=expected,
        got=got,
        fix="load it with the Megatron-LM that wrote it and save it with --ckpt-format "
        "torch_dist, or convert the weights alone",
    )
