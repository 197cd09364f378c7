"""Transformer Engine's extra states: which of them a model asks for when it is loaded.

They hold scales of FP8 products, which are computed again; Megatron wants an entry nevertheless.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from megatron_bridge.megatron_lm.merging import Merged, is_uniform
from megatron_bridge.megatron_lm.naming import EXPERTS, LAYER, Chunk, stages
from megatron_bridge.megatron_lm.rank_files import Rank, RankFiles

_EXPERT = re.compile(r"mlp\.experts\.(?:local_experts\.\d+\.)?(linear_fc[12]\._extra_state)\d*")


def keys(
    files: RankFiles, trees: Mapping[Rank, Sequence[Chunk]], merged: Mapping[str, Merged]
) -> Iterator[str]:
    """Yield the key of each entry, in the form that `torch_dist` has for objects."""
    layers = sum(count for _, _, count in stages(trees))
    apart, experts = not is_uniform(merged), int(files.arguments.get("num_experts") or 0)
    begin = 0
    for stage, number, count in stages(trees):
        rank = min(rank for rank in trees if rank.pipeline == stage)
        matches = [LAYER.fullmatch(name) for name in trees[rank][number] if "_extra_state" in name]
        found = {(int(m[1]), _EXPERT.sub(rf"{EXPERTS}\1", m[2])) for m in matches if m}
        for local, name in sorted(found):
            layer = begin + local
            prefix = f"decoder.layers.{layer}." if apart else "decoder.layers."
            for expert in range(experts if name.startswith(EXPERTS) else 1):
                at = [] if apart else [(layer, layers)]
                at += [(expert, experts)] if name.startswith(EXPERTS) else []
                offset, shape = zip(*(at or [(0, 1)]), strict=True)
                yield f"{prefix}{name}/shard_{_dots(offset)}_{_dots(shape)}"
        begin += count


def _dots(numbers: Iterable[int]) -> str:
    return ".".join(map(str, numbers))
