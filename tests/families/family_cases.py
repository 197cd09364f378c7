"""What is tried of each family: a toy `config.json`, a reference, and controls that must fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from megatron_bridge.mapping import Row

Tensors = dict[str, Tensor]
Rows = tuple[Row, ...]


@dataclass(frozen=True)
class Control:
    """A fault put in on purpose; the comparison has to see it."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Megatron fields and options set otherwise when the model is built."""
    rows: Callable[[Rows], Rows] | None = None
    """Rows changed before the import."""


@dataclass(frozen=True)
class Case:
    """One model: by default transformers' own class is built from `config` and is the reference."""

    name: str
    config: Mapping[str, Any]
    controls: Mapping[str, Control]
    native: Callable[[Mapping[str, Any]], Any] | None = None
    """Builds the reference model where transformers has no class for the `model_type`."""
    rename: Callable[[Tensors, Mapping[str, Any]], Tensors] | None = None
    """Turns the reference model's tensors into those that the family's files hold."""
    logits: Callable[[Any, Tensor], Tensor] | None = None
    """Runs the reference model on ids, [batch, sequence]."""
    attention: str = "eager"
    """transformers' `attn_implementation`."""
    note: str = ""


def relayout(old: Any, new: Any) -> Callable[[Rows], Rows]:
    """Rows with layout `old` take `new`."""
    from dataclasses import replace

    return lambda rows: tuple(
        replace(row, layout=new) if row.layout == old else row for row in rows
    )


def swap_names(one: str, other: str) -> Callable[[Rows], Rows]:
    """Exchange two words in the Hugging Face names of all rows."""
    from dataclasses import replace

    def swapped(name: str) -> str:
        return name.replace(one, "\0").replace(other, one).replace("\0", other)

    return lambda rows: tuple(replace(row, hf=tuple(map(swapped, row.hf))) for row in rows)


def reverse_pairs(rows: Rows) -> Rows:
    """Gate and up exchanged, wherever a row stacks two tensors."""
    from dataclasses import replace

    from megatron_bridge.layouts import STACKED

    return tuple(replace(r, hf=r.hf[::-1]) if r.layout == STACKED else r for r in rows)


@dataclass(frozen=True)
class UngroupedQKV:
    """Query, key and value one after the other: what a naive conversion writes."""

    name: str = "naive"

    def pack(self, parts: Any, shape: Any) -> Tensor:
        import torch

        return torch.cat(list(parts))

    def unpack(self, whole: Tensor, shape: Any) -> list[Tensor]:
        import torch

        return list(torch.split_with_sizes(whole, shape.qkv_rows))
