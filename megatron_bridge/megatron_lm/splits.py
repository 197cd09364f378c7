"""How Megatron-Core's tensors are split over tensor-parallel ranks: one table, by suffix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from megatron_bridge.errors import InputError, MappingError


class Split(Enum):
    """What a rank has of a tensor."""

    ROWS = "rows"
    COLUMNS = "columns"
    GATED = "rows, of the gate and of the other half each"
    WHOLE = "all of it"
    LATENT = "rows or all of it, as the linear layer was built"


_ROWS, _COLUMNS = ("weight", "bias"), ("weight",)
SPLITS: dict[str, Split] = {
    **{
        f"{name}.{kind}": Split.ROWS
        for name in (
            "embedding.word_embeddings",
            "output_layer",
            "self_attention.linear_qkv",
            "self_attention.linear_q_proj",
            "self_attention.linear_q_up_proj",
            "self_attention.linear_kv_up_proj",
        )
        for kind in _ROWS
    },
    "self_attention.core_attention.softmax_offset": Split.ROWS,
    **{
        f"{name}.linear_fc1.{kind}": Split.GATED
        for name in ("mlp", "mlp.shared_experts", "mlp.experts.experts")
        for kind in _ROWS
    },
    **{
        f"{name}.{kind}": Split.COLUMNS if kind == "weight" else Split.WHOLE
        for name in (
            "self_attention.linear_proj",
            *(
                f"{name}.linear_fc2"
                for name in ("mlp", "mlp.shared_experts", "mlp.experts.experts")
            ),
        )
        for kind in _ROWS
    },
    **{
        f"self_attention.linear_{name}_down_proj.{kind}": Split.LATENT
        for name in ("q", "kv")
        for kind in _ROWS
    },
    **{
        f"{name}{kind}": Split.WHOLE
        for name in (
            "input_layernorm.",
            "pre_mlp_layernorm.",
            "decoder.final_layernorm.",
            "self_attention.q_layernorm.",
            "self_attention.k_layernorm.",
            "self_attention.kv_layernorm.",
            "self_attention.linear_qkv.layer_norm_",
            "self_attention.linear_q_up_proj.layer_norm_",
            "self_attention.linear_kv_up_proj.layer_norm_",
            "mlp.linear_fc1.layer_norm_",
            "mlp.router.",
        )
        for kind in _ROWS
    },
    "mlp.router.expert_bias": Split.WHOLE,
    "mlp.shared_experts.gate_weight": Split.WHOLE,
    "embedding.position_embeddings.weight": Split.WHOLE,
}
"""By the name without `decoder.layers.N.`."""

BUFFERS = frozenset({"mlp.router.expert_bias"})
"""Tensors that no optimizer knows."""


def split_of(suffix: str, shown: str, where: Path) -> Split:
    """Return how a tensor is split.

    Raises:
        MappingError: the table does not know it.
    """
    if suffix in SPLITS:
        return SPLITS[suffix]
    near = difflib.get_close_matches(suffix, SPLITS, n=1)
    legacy = suffix.startswith("language_model.")
    raise MappingError(
        "How this tensor is split over the ranks is not known",
        where=where,
        expected="tensors of a GPT model of Megatron-Core",
        got=shown,
        fix="convert it to Megatron-Core first: it is of the model before that"
        if legacy
        else f"the nearest known name is {near[0]}"
        if near
        else "load it with Megatron-LM and save it with --ckpt-format torch_dist",
    )


def latent(suffix: str, rows: int, arguments: Mapping[str, Any]) -> Split:
    """Tell a whole down-projection of latent attention from one that is split, by its rows."""
    rank = arguments.get("q_lora_rank" if "linear_q_" in suffix else "kv_lora_rank")
    if rank is None:
        return Split.WHOLE
    extra = 0 if "linear_q_" in suffix else int(arguments.get("qk_pos_emb_head_dim") or 0)
    return Split.WHOLE if rows == int(rank) + extra else Split.ROWS


def check_attention(rows: int, ranks: int, arguments: Mapping[str, Any], where: Path) -> None:
    """Refuse attention whose key and value heads are repeated on several ranks.

    Args:
        rows: of query, key and value of all ranks together.
        ranks: tensor-parallel ranks.
        arguments: the run's.
        where: the checkpoint, for the error.
    """
    heads = arguments.get("num_attention_heads")
    groups = arguments.get("num_query_groups") if arguments.get("group_query_attention") else heads
    size = arguments.get("kv_channels")
    if not (heads and groups and size) or groups >= ranks:
        return
    wanted = (heads + 2 * groups) * size
    if rows != wanted:
        raise InputError(
            "Key and value heads are repeated on several ranks",
            where=where,
            expected=f"{wanted} rows of query, key and value",
            got=f"{rows} rows on {ranks} tensor-parallel ranks with {groups} query groups",
            fix="save the model with no more tensor-parallel ranks than query groups",
        )


def same(values: Iterable[Any]) -> bool:
    """True if all values are equal."""
    first, *others = values
    return all(value == first for value in others)
