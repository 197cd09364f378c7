"""Names of tensors in a rank's file: of which layer and expert each is, whatever form it has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megatron_bridge.errors import InputError
from megatron_bridge.megatron_lm import splits
from megatron_bridge.megatron_lm.rank_files import Rank, RankFiles
from megatron_bridge.options import ATTENTION_NORM, MLP_NORM
from megatron_bridge.sources.stored import Stored
from megatron_bridge.sources.strided import Strided

Chunk = Mapping[str, Any]
"""A model chunk's tensors by Megatron's names for its modules."""

EXPERTS = "mlp.experts.experts."
LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_LOCAL = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.(.+)")
_GROUPED = re.compile(r"mlp\.experts\.(linear_fc[12]\.(?:weight|bias))(\d+)")
_FUSED = {"mlp.experts.weight1": "linear_fc1.weight", "mlp.experts.weight2": "linear_fc2.weight"}
"""All experts' matrices in one, transposed, as the first grouped layer had them."""


@dataclass(frozen=True)
class Local:
    """A tensor's place within a chunk: its name without numbers, its layer and its expert."""

    suffix: str
    layer: int | None = None
    expert: int | None = None

    def __str__(self) -> str:
        numbers = (("layer", self.layer), ("expert", self.expert))
        return " ".join([self.suffix, *(f"{name} {n}" for name, n in numbers if n is not None)])


def chunks(tree: Mapping[str, Any]) -> list[Chunk]:
    """Return the model chunks of a rank's file; one that is not there is empty."""
    if "model" in tree:
        return [tree["model"]]
    numbers = [int(key[5:]) for key in tree if re.fullmatch(r"model\d+", key)]
    return [tree.get(f"model{i}", {}) for i in range(max(numbers) + 1)]


def stages(trees: Mapping[Rank, Sequence[Chunk]]) -> Iterator[tuple[int, int, int]]:
    """Yield stage, chunk and number of layers, in the order of the layers."""
    for number in range(max(len(found) for found in trees.values())):
        for stage in sorted({rank.pipeline for rank in trees}):
            one = max((trees[rank] for rank in trees if rank.pipeline == stage), key=len)
            if number < len(one):
                numbers = {int(m[1]) for name in one[number] if (m := LAYER.fullmatch(name))}
                yield stage, number, len(numbers)


def is_expert(name: str) -> bool:
    """True for a parameter of one expert among several."""
    return ".mlp.experts." in name


def locals_of(files: RankFiles, chunk: Chunk) -> dict[Local, Stored]:
    """A chunk's tensors, without Transformer Engine's extra states."""
    arguments = files.arguments
    plain = arguments.get("transformer_impl", "local") == "local"
    renamed = ATTENTION_NORM | MLP_NORM if plain and not _latent(arguments) else {}
    found: dict[Local, Stored] = {}
    for name, value in chunk.items():
        if "_extra_state" in name:
            continue
        if not isinstance(value, Stored):
            splits.split_of(f"{name}.", name, files.folder)
        at = LAYER.fullmatch(name)
        suffix, layer = (at[2], int(at[1])) if at else (name, None)
        if suffix in _FUSED:
            for expert, part in _unfused(files, suffix, value):
                found[Local(EXPERTS + _FUSED[suffix], layer, expert)] = part
            continue
        for old, new in renamed.items():
            suffix = suffix.replace(old, new) if suffix.startswith(old) else suffix
        if one := _LOCAL.fullmatch(suffix):
            found[Local(EXPERTS + one[2], layer, int(one[1]))] = value
        elif one := _GROUPED.fullmatch(suffix):
            found[Local(EXPERTS + one[1], layer, int(one[2]))] = value
        else:
            found[Local(suffix, layer)] = value
    return found


def _latent(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments.get("multi_latent_attention"))


def _unfused(files: RankFiles, suffix: str, whole: Stored) -> Iterator[tuple[int, Stored]]:
    """Yield the experts of a fused matrix, [out, in] each."""
    total = int(files.arguments.get("num_experts") or 0)
    count = total // files.size("expert")
    if not count or type(whole) is not Stored:
        raise InputError(
            "Experts that lie in one matrix cannot be told apart",
            where=files.folder,
            expected="num_experts among the run's arguments, and a matrix stored row by row",
            got=f"{suffix}, {total} experts",
        )
    wide, narrow = whole.shape if suffix.endswith("1") else whole.shape[::-1]
    inner, outer = (wide, narrow // count) if suffix.endswith("1") else (narrow // count, wide)
    step = inner * outer * whole.dtype.itemsize
    for expert in range(count):
        place = whole.offset + expert * step
        yield expert, Strided(whole.file, place, whole.dtype, (outer, inner), (1, outer))
