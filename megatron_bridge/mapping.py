"""Rows that tie Hugging Face tensors to Megatron checkpoint tensors, and the check of them all.

One row serves both directions and every parallel layout, because a `torch_dist` checkpoint does not
depend on the layout of the run that wrote it.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from megatron_bridge.errors import ConfigError
from megatron_bridge.layouts import AS_IS, Layout, ModelShape

VOCAB_DIVISOR = 128  # Megatron-LM's default of --make-vocab-size-divisible-by

REQUIRED = object()


@dataclass(frozen=True)
class Slot:
    """One slice of a Megatron checkpoint tensor: the layer `index` of stacked key `key`.

    A uniform GPT model stores all layers under one key, `[layers, ...]`; `index` is None for a
    tensor that belongs to no layer.
    """

    key: str
    index: int | None = None

    def __str__(self) -> str:
        return self.key if self.index is None else f"{self.key}[{self.index}]"


@dataclass(frozen=True)
class Row:
    """One Megatron tensor and the Hugging Face tensors it is made of."""

    mcore: str
    hf: tuple[str, ...]
    layout: Layout = AS_IS
    needs: str | None = None
    """The optional part of the model that this row belongs to, or None for every model."""
    sizes: tuple[str, ...] = ()
    """The Megatron tensor's dimensions by name (`ModelShape.size`); checked where given."""

    def expand(self, shape: ModelShape) -> Iterator[Bound]:
        """Yield this row once for each layer, or once."""
        if self.needs is not None and self.needs not in shape.has:
            return
        for layer in range(shape.layers) if "{layer}" in self.mcore else (None,):
            yield Bound(self, layer)


@dataclass(frozen=True)
class Bound:
    """A row at one layer."""

    row: Row
    layer: int | None

    @property
    def hf(self) -> tuple[str, ...]:
        """Names of the Hugging Face tensors."""
        return tuple(name.format(layer=self.layer) for name in self.row.hf)

    @property
    def slot(self) -> Slot:
        """Where the tensor lies in the checkpoint."""
        return Slot(self.row.mcore.replace(".{layer}", ""), self.layer)


@dataclass(frozen=True)
class Field:
    """One entry of `config.json` and the Megatron field that means the same."""

    megatron: str
    hf: str
    default: Any = REQUIRED
    """The value when `config.json` has none; a callable computes it from the config."""

    def read(self, config: Mapping[str, Any]) -> Any:
        """Return the field's value, or raise `ConfigError` when it is missing."""
        value = config.get(self.hf)
        if value is not None:
            return value
        if self.default is REQUIRED:
            raise ConfigError(
                f"config.json has no {self.hf}",
                expected=f"{self.hf}, which becomes Megatron's {self.megatron}",
                got=f"the keys {', '.join(sorted(config)) or '(none)'}",
                fix="use the config.json that belongs to the weights",
            )
        return self.default(config) if callable(self.default) else self.default


Rope = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """A model family: how its `config.json` and its tensors become Megatron's."""

    model_type: str
    rows: tuple[Row, ...]
    fields: tuple[Field, ...]
    rope: Rope
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Megatron fields that the family implies."""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Switches of `config.json` and the values that can be carried over; others are refused."""
    parts: Mapping[str, Callable[[Mapping[str, Any]], bool]] = field(default_factory=dict)
    """Optional parts by name, with the test on `config.json` that says whether they are there."""
    buffers: tuple[str, ...] = ()
    """Regular expressions of Hugging Face tensors that hold no weights and may be left out."""
    tied: tuple[str, str] = ("lm_head.weight", "model.embed_tokens.weight")
    """Output and input embedding; a tied model's file may hold the first as a copy."""

    def megatron_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return flat JSON-able fields of Megatron's `TransformerConfig` and `GPTModel`.

        Raises:
            ConfigError: a field is missing or a switch has a value that cannot be carried over.
        """
        for key, allowed in self.only.items():
            if config.get(key, allowed[0]) not in allowed:
                raise ConfigError(
                    f"{self.model_type}: {key} cannot be carried over to Megatron",
                    where=f"config.json, {key}",
                    expected=" or ".join(map(repr, allowed)),
                    got=repr(config[key]),
                    fix="convert a model without this switch",
                )
        return {
            **self.fixed,
            **{f.megatron: f.read(config) for f in self.fields},
            **self.rope(config),
        }

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        """Return the sizes that packing needs."""
        fields = self.megatron_config(config)
        vocab = int(config["vocab_size"]) if "vocab_size" in config else 0
        if vocab < 1:
            raise ConfigError(
                "config.json has no vocab_size",
                where="config.json",
                expected="a positive number",
                got=config.get("vocab_size", "none"),
                fix="use the config.json that belongs to the weights",
            )
        return ModelShape(
            layers=fields["num_layers"],
            hidden=fields["hidden_size"],
            heads=fields["num_attention_heads"],
            kv_heads=fields["num_query_groups"],
            head_dim=fields["kv_channels"],
            vocab=vocab,
            padded_vocab=padded_vocab_size(vocab),
            has=frozenset(name for name, test in self.parts.items() if test(config)),
            ffn=fields["ffn_hidden_size"],
        )

    def expand(self, shape: ModelShape) -> list[Bound]:
        """Every row at every layer."""
        return [bound for row in self.rows for bound in row.expand(shape)]

    def is_buffer(self, name: str) -> bool:
        """True for a tensor of the Hugging Face file that holds no weights."""
        return any(re.fullmatch(pattern, name) for pattern in self.buffers)


def padded_vocab_size(vocab: int, divisor: int = VOCAB_DIVISOR) -> int:
    """`vocab` rounded up to a multiple of `divisor`."""
    return -(-vocab // divisor) * divisor


def check(
    family: Family,
    shape: ModelShape,
    hf_names: Iterable[str] | None = None,
    slots: Iterable[Slot] | None = None,
) -> list[str]:
    """Return what is wrong: every tensor on each given side must be claimed exactly once."""
    bounds = family.expand(shape)
    claimed_hf = Counter(name for bound in bounds for name in bound.hf)
    claimed_slots = Counter(bound.slot for bound in bounds)
    problems = [f"{name} is claimed by two rows" for name, n in claimed_hf.items() if n > 1]
    problems += [f"{slot} is claimed by two rows" for slot, n in claimed_slots.items() if n > 1]
    if hf_names is not None:
        names = {name for name in hf_names if not family.is_buffer(name)}
        problems += _unclaimed("Hugging Face tensor", names, set(claimed_hf))
        problems += [f"the model has no tensor {n}" for n in sorted(claimed_hf.keys() - names)]
    if slots is not None:
        texts = {str(slot) for slot in slots}
        wanted = {str(slot) for slot in claimed_slots}
        problems += _unclaimed("Megatron tensor", texts, wanted)
        problems += [f"the checkpoint has no tensor {s}" for s in sorted(wanted - texts)]
    return problems


def _unclaimed(kind: str, found: set[str], wanted: set[str]) -> list[str]:
    lines = []
    for name in sorted(found - wanted):
        near = difflib.get_close_matches(name, sorted(wanted - found) or sorted(wanted), n=1)
        hint = f" (nearest: {near[0]})" if near else ""
        lines.append(f"no row claims the {kind} {name}{hint}")
    return lines
