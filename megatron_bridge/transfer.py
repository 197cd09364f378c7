"""Tensors moved between a Hugging Face folder and a checkpoint, in blocks and by threads.

Work is cut into groups that depend on the model alone, so that the bytes written depend neither on
the memory nor on the number of threads. Each thread holds one block at a time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge import hf, torch_dist
from megatron_bridge.comparison import Again, Compared, Direct
from megatron_bridge.mapping import Bound
from megatron_bridge.side import WHOLE, Piece, Side, Sides
from megatron_bridge.sources.stored import BLOCK_BYTES, raw

if TYPE_CHECKING:
    import torch

GROUP_BYTES = 256 * 2**20
"""What one thread takes at a time, and what is done again after a kill."""
Group = list[Piece]


def groups(
    one: Side, spec: Callable[[Bound], tuple[tuple[int, ...], torch.dtype]], *, parts: bool
) -> list[Group]:
    """Cut a model into groups of pieces.

    Args:
        one: the job, opened.
        spec: shape and number format of a Megatron tensor.
        parts: cut large tensors by the rows of their Hugging Face tensors, each of which stays in
            one group and in its order; else by the rows of the Megatron tensor.
    """
    found: list[Group] = [[]]
    filled = 0
    for number, bound in enumerate(one.model.bounds):
        shape, dtype = spec(bound)
        size = math.prod(shape) * dtype.itemsize
        if filled and filled + size > GROUP_BYTES:
            found.append([])
            filled = 0
        filled += size
        if size <= BLOCK_BYTES or not bound.row.layout.by_rows:
            found[-1].append(Piece(number, WHOLE, 0, 0))
            continue
        height = max(1, BLOCK_BYTES // (size // shape[0]))
        lengths = [part.shape[0] for part in one.part_specs(bound)] if parts else [shape[0]]
        found[-1] += [
            Piece(number, part, start, min(start + height, length))
            for part, length in enumerate(lengths)
            for start in range(0, length, height)
        ]
    return found


def write_checkpoint(sides: Sides, folder: Path, numbered: tuple[int, Group]) -> dict[str, Any]:
    """Write one group of a checkpoint into its own file.

    Returns:
        `placed`, where each block lies; of a source elsewhere also `noted`, digests of what was
        read of it, and `fetched`, in bytes.
    """
    number, group = numbered
    one = sides.mine()
    before = one.fetched
    chunks = [_chunk(one, piece) for piece in group]
    placed = torch_dist.write_file(folder / f"__{number}_0.distcp", chunks)
    found: dict[str, Any] = {"placed": [block.model_dump() for block in placed]}
    if one.notes is not None:
        found |= {"noted": one.notes.take(), "fetched": one.fetched - before}
    return found


def write_tensors(
    sides: Sides, folder: Path, places: Mapping[str, hf.Place], numbered: tuple[int, Group]
) -> int:
    """Write one group of Hugging Face tensors into files whose headers are there already."""
    one, written = sides.mine(), 0
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for piece in numbered[1]:
            for name, row, values in one.unpacked(piece):
                place = places[name]
                if place.file not in files:
                    files[place.file] = stack.enter_context((folder / place.file).open("r+b"))
                values = values.to(hf.dtype_of(place.dtype)).contiguous()
                offset = place.offset + row * (values[0].nbytes if row else 0)
                hf.write_at(files[place.file].fileno(), offset, raw(values))
                written += values.nbytes
        for file in files.values():
            os.fsync(file.fileno())
    return written


def compare(sides: Sides, numbered: tuple[int, Group]) -> dict[str, Compared]:
    """Compare one group of tensors on both sides, block by block; return what by Hugging Face name.

    States are "equal", "cast" (equal after a cast to the narrower format), or what is wrong.
    """
    one = sides.mine()
    found: dict[str, Direct | Again] = {}
    for piece in numbered[1]:
        for name, row, other in one.unpacked(piece):
            if name not in found:
                found[name] = one.original(name)
            found[name].take(row, other)
    return {name: tensor.result() for name, tensor in found.items()}


def _chunk(one: Side, piece: Piece) -> torch_dist.Chunk:
    bound = one.model.bounds[piece.bound]
    tail, dtype = one.packed_spec(bound)
    index, counts = bound.slot.index, bound.counts(one.model.shape)
    rows = tail if piece.part == WHOLE else (piece.stop - piece.start, *tail[1:])
    size = (*(1 for _ in index), *rows)
    offset = (*index, *((piece.start, *(0 for _ in tail[1:])) if tail else ()))
    return torch_dist.Chunk(
        bound.slot.key,
        offset,
        size,
        counts + tail,
        dtype,
        lambda: one.packed(piece).contiguous().view(size),
    )
