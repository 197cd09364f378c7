"""The tensors of all ranks of the old `torch` layout as one set of global tensors.

Layers are numbered by what is there: each stage's first chunk in turn, then each stage's second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from megatron_bridge.errors import ConfigError, InputError, MappingError
from megatron_bridge.megatron_lm import splits
from megatron_bridge.megatron_lm.naming import LAYER, Chunk, Local, locals_of, stages
from megatron_bridge.megatron_lm.rank_files import Rank, RankFiles
from megatron_bridge.megatron_lm.splits import Split
from megatron_bridge.sources.stored import Stored

if TYPE_CHECKING:
    import torch

EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"


@dataclass(frozen=True)
class Block:
    """Some rows of a rank's tensor, and where they lie in the global one."""

    source: Stored
    first: int
    rows: int
    row: int
    column: int = 0


@dataclass
class Cell:
    """One layer's, or expert's, part of a global tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    blocks: list[Block]
    copies: list[list[Block]] = field(default_factory=list)
    """The same values on other ranks."""


@dataclass
class Merged:
    """A global tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    depth: int
    """How many of its first dimensions count layers and experts."""
    cells: dict[tuple[int, ...], Cell]


def merge(files: RankFiles, trees: Mapping[Rank, Sequence[Chunk]]) -> dict[str, Merged]:
    """Return global tensors by Megatron's keys.

    Args:
        files: the checkpoint, for its arguments and its layout.
        trees: by rank, tensors of each chunk.

    Raises:
        MappingError: a tensor that is not known, or that a rank lacks.
        InputError: ranks that do not fit together.
    """
    split = files.arguments.get("expert_tensor_parallel_size")
    if not files.experts_are_split() and split != 1:
        raise ConfigError(
            "Experts are split over fewer ranks than the attention, and over more than one",
            where=files.folder,
            expected=f"expert_tensor_parallel_size 1 or {files.size('tensor')}",
            got=split,
            fix="load it with Megatron-LM and save it with --ckpt-format torch_dist",
        )
    cells: dict[tuple[str, int | None, int | None], Cell] = {}
    layers = 0
    for stage, number, count in stages(trees):
        chunks = {r: trees[r][number : number + 1] for r in trees if r.pipeline == stage}
        ranks = {r: locals_of(files, found[0] if found else {}) for r, found in chunks.items()}
        _check_names(files, ranks)
        for local, cell in _stage(files, ranks):
            layer = None if local.layer is None else layers + local.layer
            cells[local.suffix, layer, local.expert] = cell
        layers += count
    if not files.arguments.get("untie_embeddings_and_output_weights", True):
        copy = cells.pop((OUTPUT, None, None), None)
        if copy is not None and (EMBEDDING, None, None) in cells:
            cells[EMBEDDING, None, None].copies.append(copy.blocks)
    return _stack(files, cells, layers)


def is_uniform(merged: Mapping[str, Merged]) -> bool:
    """True where all layers of a tensor are under one key."""
    return not any(LAYER.fullmatch(key) for key in merged)


def _check_names(files: RankFiles, ranks: Mapping[Rank, Mapping[Local, Stored]]) -> None:
    """Refuse ranks of a stage that have not the same tensors; each numbers its experts from 0."""
    first = min(ranks)
    for rank, found in ranks.items():
        if apart := found.keys() ^ ranks[first].keys():
            local = min(apart, key=str)
            has, lacks = (rank, first) if local in found else (first, rank)
            raise MappingError(
                "A tensor is on some ranks only",
                where=files.folder,
                expected=f"{local} in {files.places[lacks].name}, as in {files.places[has].name}",
                got=f"{len(apart)} tensors that only one of both has",
                fix="copy the whole checkpoint here, of one iteration",
            )


def _stage(
    files: RankFiles, ranks: Mapping[Rank, Mapping[Local, Stored]]
) -> Iterator[tuple[Local, Cell]]:
    """Yield one chunk of one stage, experts numbered through."""
    first = ranks[min(ranks)]
    width = 1 + max((n.expert for n in first if n.expert is not None), default=0)
    for local in first:
        if local.expert is None:
            yield local, _cell(files, local, _parts(files, local, ranks, None), first)
            continue
        for expert in sorted({rank.expert for rank in ranks}):
            parts = _parts(files, local, ranks, expert)
            cell = _cell(files, local, parts, first)
            yield replace(local, expert=expert * width + local.expert), cell


def _parts(
    files: RankFiles,
    local: Local,
    ranks: Mapping[Rank, Mapping[Local, Stored]],
    expert: int | None,
) -> list[Stored]:
    """The tensors of the ranks that make up one, in order."""
    chosen: dict[int, Rank] = {}
    for rank in sorted(ranks):
        if expert in (None, rank.expert):
            chosen.setdefault(rank.tensor, rank)
    order = [chosen[tensor] for tensor in sorted(chosen)]
    if expert is not None and not files.experts_are_split():
        order = order[:1]
    return [ranks[rank][local] for rank in order]


def _cell(
    files: RankFiles, local: Local, parts: list[Stored], beside: Mapping[Local, Stored]
) -> Cell:
    where, count = files.folder, len(parts)
    split = splits.split_of(local.suffix, str(local), where)
    shape = parts[0].shape
    if split is Split.LATENT:
        split = splits.latent(local.suffix, shape[0], files.arguments)
    if split is Split.GATED and not _gated(local, shape[0], beside):
        split = Split.ROWS
    _check_shapes(files, local, split, parts)
    rows = [part.shape[0] if part.shape else 1 for part in parts]
    starts = [sum(rows[:i]) for i in range(count)]
    if split is Split.WHOLE or count == 1:
        copies = [[Block(part, 0, rows[0], 0)] for part in parts]
        return Cell(shape, parts[0].dtype, copies[0], copies[1:])
    if split is Split.COLUMNS:
        wide = [part.shape[1] for part in parts]
        blocks = [Block(p, 0, rows[0], 0, sum(wide[:i])) for i, p in enumerate(parts)]
        return Cell((shape[0], sum(wide)), parts[0].dtype, blocks)
    if split is Split.ROWS:
        blocks = [Block(p, 0, n, at) for p, n, at in zip(parts, rows, starts, strict=True)]
    else:
        # Each rank has rows of the gate, then as many of the other half.
        blocks = [
            Block(part, half * n // 2, n // 2, half * sum(rows) // 2 + at // 2)
            for half in (0, 1)
            for part, n, at in zip(parts, rows, starts, strict=True)
        ]
    if local.suffix == "self_attention.linear_qkv.weight":
        splits.check_attention(sum(rows), count, files.arguments, where)
    return Cell((sum(rows), *shape[1:]), parts[0].dtype, blocks)


def _gated(local: Local, rows: int, beside: Mapping[Local, Stored]) -> bool:
    """True if a feed-forward layer's first matrix has twice the rows that its second takes."""
    name = local.suffix.rpartition(".linear_fc1.")[0] + ".linear_fc2.weight"
    second = beside.get(replace(local, suffix=name))
    return second is not None and rows == 2 * second.shape[1]


def _check_shapes(files: RankFiles, local: Local, split: Split, parts: list[Stored]) -> None:
    free = {Split.ROWS: 0, Split.GATED: 0, Split.COLUMNS: 1}.get(split)
    found = {(p.dtype, tuple(n for i, n in enumerate(p.shape) if i != free)) for p in parts}
    if len(found) > 1:
        raise InputError(
            "The ranks' parts of a tensor do not fit together",
            where=f"{files.folder}, {local}",
            expected="one number format and one shape",
            got=", ".join(f"{part.dtype} {list(part.shape)}" for part in parts),
            fix="copy the whole checkpoint here, of one iteration",
        )


def _stack(
    files: RankFiles, cells: Mapping[tuple[str, int | None, int | None], Cell], layers: int
) -> dict[str, Merged]:
    apart = not _uniform(files.arguments, cells, layers)
    grouped: dict[str, dict[tuple[int, ...], Cell]] = {}
    for (suffix, layer, expert), cell in cells.items():
        index = tuple(n for n in (None if apart else layer, expert) if n is not None)
        number = f"{layer}." if apart else ""
        key = suffix if layer is None else f"decoder.layers.{number}{suffix}"
        grouped.setdefault(key, {})[index] = cell
    merged = {}
    for key, found in sorted(grouped.items()):
        axes = [1 + max(numbers) for numbers in zip(*found, strict=True)]
        if key.startswith("decoder.layers.") and not apart:
            axes[0] = layers
        one = next(iter(found.values()))
        whole = len(found) == math.prod(axes)
        if not whole or not splits.same((c.shape, c.dtype) for c in found.values()):
            raise InputError(
                "The layers or experts of a tensor do not fit together",
                where=f"{files.folder}, {key}",
                expected=f"{math.prod(axes)} of one shape and number format",
                got=f"{len(found)} of {len({(c.shape, c.dtype) for c in found.values()})} kinds",
                fix="copy the whole checkpoint here, of one iteration",
            )
        merged[key] = Merged((*axes, *one.shape), one.dtype, len(axes), found)
    return merged


def _uniform(
    arguments: Mapping[str, Any],
    cells: Mapping[tuple[str, int | None, int | None], Cell],
    layers: int,
) -> bool:
    """True where Megatron keeps all layers under one key: layers of one kind."""
    if arguments.get("num_experts"):
        return bool(arguments.get("moe_layer_freq", 1) == 1)
    kinds: dict[int, set[str]] = {n: set() for n in range(layers)}
    for suffix, layer, _ in cells:
        if layer is not None:
            kinds[layer].add(suffix)
    return splits.same(kinds.values()) if kinds else True
