"""Where parameters lie in the distributed optimizer's buffers (`distrib_optim.pt`).

Megatron puts the parameters of a chunk one after the other, the last first, each at a multiple of
64 elements, and cuts the buffer into buckets; the file has the buckets without the padding between
them (`distrib_optimizer.py`, `_compute_per_buffer_param_layout`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from megatron_bridge.errors import InputError
from megatron_bridge.megatron_lm.naming import is_expert
from megatron_bridge.megatron_lm.rank_files import OPTIMIZER_FILE, Rank, RankFiles
from megatron_bridge.sources.stored import Stored

if TYPE_CHECKING:
    from megatron_bridge.megatron_lm.optimizer import Parameter

_ALIGNED = 64
_BUCKET = 40_000_000
_BUCKET_PER_RANK = 1_000_000


def assign(
    files: RankFiles,
    rank: Rank,
    found: Any,
    parameters: Sequence[Parameter],
    experts: bool,
    optimizers: int,
) -> Iterator[tuple[Parameter, str, Stored]]:
    """Yield a parameter, the name of a part of its state, and its values.

    Args:
        files: the checkpoint.
        rank: whose file it is.
        found: what the file holds; None where the rank has none.
        parameters: of the rank, in the model's order.
        experts: whether experts have an optimizer of their own.
        optimizers: how many the chained one is made of.

    Raises:
        InputError: the buffers are not laid out as Megatron-LM lays them out.
    """
    states = found if isinstance(found, list) else [found]
    if len(states) != optimizers:
        states = [*states, *[None] * (optimizers - len(states))]
    for number, state in enumerate(states):
        if state is None:
            continue
        if not isinstance(state, Mapping) or not state.get("buckets_coalesced"):
            raise _unknown(files, rank, "buckets joined to one tensor", "buckets apart")
        mine = [p for p in parameters if not experts or is_expert(p.name) == (number > 0)]
        contents = list(_contents(mine))
        if len(contents) != len(state) - 1:
            raise _unknown(files, rank, f"{len(contents)} buffers", f"{len(state) - 1}")
        for at, members in enumerate(contents):
            ((_, values),) = state[at].items()
            yield from _slices(files, rank, members, values)


def _contents(parameters: Sequence[Parameter]) -> Iterator[list[Parameter]]:
    """Yield the parameters of each buffer: one for each chunk and number format."""
    found: dict[tuple[int, Any], list[Parameter]] = {}
    for one in parameters:
        found.setdefault((one.chunk, one.values.dtype), []).append(one)
    yield from (found[key] for key in sorted(found, key=lambda key: key[0]))


def _slices(
    files: RankFiles, rank: Rank, members: Sequence[Parameter], values: Mapping[str, Any]
) -> Iterator[tuple[Parameter, str, Stored]]:
    limit = _bucket_size(files, rank, members[0].chunk)
    places, total = layout(
        [math.prod(p.values.shape) for p in members], [_shared(files, p) for p in members], limit
    )
    whole = int(values["numel_unpadded"])
    if total != whole:
        raise _unknown(files, rank, f"{total} elements in a buffer", str(whole))
    for kind, flat in values.items():
        if isinstance(flat, Stored):
            for one, start in zip(members, places, strict=True):
                place = flat.offset + start * flat.dtype.itemsize
                yield one, kind, Stored(flat.file, place, flat.dtype, one.values.shape)


def layout(sizes: Sequence[int], alone: Sequence[bool], limit: int | None) -> tuple[list[int], int]:
    """Return where parameters begin in the joined buckets, and how long these are.

    Args:
        sizes: elements of each parameter, in the model's order.
        alone: which have a bucket of their own.
        limit: elements after which a bucket is closed; None for one bucket.
    """
    begins = [0] * len(sizes)
    joined = place = count = 0  # of the buckets before; within this one; its parameters
    for number in reversed(range(len(sizes))):
        place = -(-place // _ALIGNED) * _ALIGNED
        if alone[number] and count:
            joined, place, count = joined + place, 0, 0
        begins[number] = joined + place
        place, count = place + sizes[number], count + 1
        if alone[number] or (limit is not None and place >= limit):
            joined, place, count = joined + place, 0, 0
    return begins, joined + place


def _bucket_size(files: RankFiles, rank: Rank, chunk: int) -> int | None:
    arguments = files.arguments
    if not arguments.get("overlap_grad_reduce") or rank.pipeline or chunk:
        return None
    ranks = int(arguments.get("data_parallel_size") or 1)
    ranks *= int(arguments.get("context_parallel_size") or 1)
    return int(arguments.get("ddp_bucket_size") or max(_BUCKET, _BUCKET_PER_RANK * ranks))


def _shared(files: RankFiles, parameter: Parameter) -> bool:
    """True for tied embeddings on two stages, which have a bucket of their own."""
    tied = not files.arguments.get("untie_embeddings_and_output_weights", True)
    words = ("embedding.word_embeddings.weight", "output_layer.weight")
    return tied and files.size("pipeline") > 1 and parameter.name in words


def _unknown(files: RankFiles, rank: Rank, expected: str, got: str) -> InputError:
    return InputError(
        "The distributed optimizer's buffers are not laid out as is known",
        where=files.places[rank] / OPTIMIZER_FILE,
        expected=expected,
        got=got,
        fix="load it with the Megatron-LM that wrote it and save it with --ckpt-format "
        "torch_dist, or convert the weights alone",
    )
