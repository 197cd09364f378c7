"""Rows that tie Hugging Face tensors to Megatron checkpoint tensors, and the check of them all.

One row serves both directions and every parallel layout, because a `torch_dist` checkpoint does not
depend on the layout of the run that wrote it.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from megatron_bridge.errors import ConfigError
from megatron_bridge.layouts import AS_IS, Layout, ModelShape

HINTS = 8
"""For how many unclaimed tensors the nearest name is looked for."""
VOCAB_DIVISOR = 128  # Megatron-LM's default of --make-vocab-size-divisible-by

REQUIRED = object()


@dataclass(frozen=True)
class Slot:
    """One slice of a Megatron checkpoint tensor.

    A uniform GPT model stores all layers of a tensor under one key, `[layers, ...]`, and all
    experts of a layer within it, `[layers, experts, ...]`. `index` says which; it is empty for a
    tensor that belongs to no layer.
    """

    key: str
    index: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.key + "".join(f"[{i}]" for i in self.index)


@dataclass(frozen=True)
class Row:
    """One Megatron tensor and the Hugging Face tensors it is made of.

    Names hold `{layer}` and `{expert}` where there is one for each.
    """

    mcore: str
    hf: tuple[str, ...]
    layout: Layout = AS_IS
    sizes: tuple[str, ...] = field(kw_only=True)
    """The Megatron tensor's dimensions by name (`ModelShape.size`)."""
    needs: str | None = field(default=None, kw_only=True)
    """The optional part of the model that this row belongs to, or None for every model."""
    layers: str | None = field(default=None, kw_only=True)
    """The kind of layers that have this tensor, or None for all."""
    keeps_dtype: bool = field(default=False, kw_only=True)
    """No cast of the model's weights changes this tensor's number format."""

    def expand(self, shape: ModelShape) -> Iterator[Bound]:
        """Yield this row once for each layer and expert, or once."""
        if self.needs is not None and self.needs not in shape.has:
            return
        layers: Iterable[int | None] = (None,)
        if "{layer}" in self.mcore:
            layers = range(shape.layers) if self.layers is None else shape.layer_sets[self.layers]
        for layer in layers:
            for expert in range(shape.experts) if "{expert}" in self.mcore else (None,):
                yield Bound(self, layer, expert, shape.stacked)


@dataclass(frozen=True)
class Bound:
    """A row at one layer and one expert."""

    row: Row
    layer: int | None
    expert: int | None = None
    stacked: bool = True

    @property
    def hf(self) -> tuple[str, ...]:
        """Names of the Hugging Face tensors."""
        return tuple(name.format(layer=self.layer, expert=self.expert) for name in self.row.hf)

    @property
    def slot(self) -> Slot:
        """Where the tensor lies in the checkpoint."""
        key, index = self.row.mcore.replace(".{expert}", ""), [self.layer, self.expert]
        if not self.stacked:
            key, index = key.replace("{layer}", str(self.layer)), [self.expert]
        return Slot(key.replace(".{layer}", ""), tuple(i for i in index if i is not None))

    def counts(self, shape: ModelShape) -> tuple[int, ...]:
        """How many slices the checkpoint tensor has along each axis of the slot's index."""
        axes = [(self.layer, shape.layers if self.stacked else None), (self.expert, shape.experts)]
        return tuple(n for i, n in axes if i is not None and n is not None)


@dataclass(frozen=True)
class Field:
    """One entry of `config.json` and the Megatron field that means the same."""

    megatron: str
    hf: str
    default: Any = REQUIRED
    """The value when `config.json` has none; a callable computes it from the config."""
    other: str = ""
    """Another name that some versions of transformers write."""

    def read(self, config: Mapping[str, Any]) -> Any:
        """Return the field's value, or raise `ConfigError` when it is missing."""
        for name in (self.hf, self.other):
            if config.get(name) is not None:
                return config[name]
        if self.default is REQUIRED:
            raise ConfigError(
                f"config.json has no {self.hf}",
                expected=f"{self.hf}, which becomes Megatron's {self.megatron}",
                got=f"the keys {', '.join(sorted(config)) or '(none)'}",
                fix="use the config.json that belongs to the weights",
            )
        return self.default(config) if callable(self.default) else self.default


Config = Mapping[str, Any]
"""The contents of `config.json`."""


_SIZES = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "max_sequence_length",
)


@contextmanager
def _readable() -> Iterator[None]:
    """Tell of a `config.json` whose entries are of the wrong kind."""
    try:
        yield
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise ConfigError(
            "config.json has an entry of the wrong kind, or lacks one",
            where="config.json",
            expected="numbers, words and tables as transformers writes them",
            got=f"no entry {error}" if isinstance(error, KeyError) else error,
            fix="use the config.json that belongs to the weights",
        ) from error


@dataclass(frozen=True)
class Family:
    """A model family: how its `config.json` and its tensors become Megatron's."""

    model_type: str
    rows: tuple[Row, ...]
    fields: tuple[Field, ...]
    toy: Config
    """The `config.json` of a small model with awkward shapes, for tests."""
    computed: tuple[Callable[[Config], dict[str, Any]], ...] = ()
    """Megatron fields and `Options` that take more than one entry of `config.json`."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Megatron fields and `Options` that the family implies."""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Switches of `config.json` and the values that can be carried over; others are refused. The
    first value is the default."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Entries of `config.json` that only another network of this name has, and its reason."""
    parts: Mapping[str, Callable[[Config], bool]] = field(default_factory=dict)
    """Optional parts by name, with the test on `config.json` that says whether they are there."""
    layer_sets: Callable[[Config], Mapping[str, Iterable[int]]] = lambda config: {}
    """Layers by kind, for rows that belong to some layers only."""
    buffers: tuple[str, ...] = ()
    """Regular expressions of Hugging Face tensors that hold no weights and may be left out."""
    left_out: Callable[[Config], Mapping[str, str]] = lambda config: {}
    """Regular expressions of weights with no place in Megatron's model, and what they are."""
    tied: tuple[str, str] = ("lm_head.weight", "model.embed_tokens.weight")
    """Output and input embedding; a tied model's file may hold the first as a copy."""
    prefix: str = ""
    """What some files leave off in front of every name; they get it back as they had it."""
    vocab: str = "vocab_size"
    """The entry of `config.json` with the number of tokens."""
    native: Callable[[Config], tuple[Family, Config]] | None = None
    """Where the family's class is remote code: the family and the `config.json` of transformers'
    class that computes the same; raises `ConfigError` where there is none."""

    @_readable()
    def megatron_config(self, config: Config) -> dict[str, Any]:
        """Return flat JSON-able fields: Megatron's `TransformerConfig`, `GPTModel`, `Options`.

        Raises:
            ConfigError: a field is missing or a switch has a value that cannot be carried over.
        """
        for key, why in self.refused.items():
            if config.get(key):
                raise self._cannot_carry(key, config[key], f"a model without it: {why}")
        for key, allowed in self.only.items():
            value = config.get(key, allowed[0])
            if value not in allowed:
                raise self._cannot_carry(key, value, " or ".join(map(repr, allowed)))
        last = {f.megatron: f for f in self.fields}  # a family's own come after shared ones
        fields = {**self.fixed, **{name: f.read(config) for name, f in last.items()}}
        for compute in self.computed:
            fields |= compute(config)
        for name in _SIZES:
            if type(fields[name]) is not int or fields[name] < 1:
                entry = last[name].hf if name in last else name
                raise ConfigError(
                    f"config.json gives no {entry} that can be used",
                    where=f"config.json, {entry}",
                    expected="a whole number of at least 1",
                    got=repr(fields[name]),
                    fix="use the config.json that belongs to the weights",
                )
        return fields

    @_readable()
    def shape(self, config: Config) -> ModelShape:
        """Return the sizes that packing needs."""
        fields = self.megatron_config(config)
        vocab = Field("vocab_size", self.vocab).read(config)
        return ModelShape(
            layers=fields["num_layers"],
            hidden=fields["hidden_size"],
            heads=fields["num_attention_heads"],
            kv_heads=fields["num_query_groups"],
            head_dim=fields["kv_channels"],
            vocab=vocab,
            padded_vocab=padded_vocab_size(vocab),
            has=frozenset(name for name, test in self.parts.items() if test(config)),
            experts=fields.get("num_moe_experts") or 0,
            layer_sets={k: tuple(sorted(v)) for k, v in self.layer_sets(config).items()},
            # Megatron names layers one by one as soon as `moe_layer_freq` is a list.
            stacked=not isinstance(fields.get("moe_layer_freq"), list),
            sizes=sizes_of(fields),
        )

    def expand(self, shape: ModelShape) -> list[Bound]:
        """Every row at every layer."""
        return [bound for row in self.rows for bound in row.expand(shape)]

    def is_buffer(self, name: str) -> bool:
        """True for a tensor of the Hugging Face file that holds no weights."""
        return any(re.fullmatch(pattern, name) for pattern in self.buffers)

    def _cannot_carry(self, key: str, got: object, expected: str) -> ConfigError:
        return ConfigError(
            f"{self.model_type}: {key} cannot be carried over to Megatron",
            where=f"config.json, {key}",
            expected=expected,
            got=repr(got),
            fix="convert a model without this switch",
        )

    def without_prefix(self) -> Family:
        """Return the family with the names of a file that leaves `prefix` off."""

        def cut(name: str) -> str:
            return name.removeprefix(self.prefix)

        rows = tuple(replace(row, hf=tuple(map(cut, row.hf))) for row in self.rows)
        # A buffer's pattern begins with the prefix, its dots escaped.
        buffers = tuple(b.removeprefix(re.escape(self.prefix)) for b in self.buffers)
        tied = (cut(self.tied[0]), cut(self.tied[1]))
        return replace(self, rows=rows, buffers=buffers, tied=tied)


def sizes_of(fields: Mapping[str, Any]) -> dict[str, int]:
    """Dimensions of Megatron tensors by the names that rows give them, from Megatron's fields."""
    head_dim = fields["kv_channels"]
    heads, groups = fields["num_attention_heads"], fields["num_query_groups"]
    known = {
        "hidden": fields["hidden_size"],
        "ffn": fields["ffn_hidden_size"],
        "gate and up": 2 * fields["ffn_hidden_size"],
        "head": head_dim,
        "heads": heads * head_dim,
        "heads and KV heads": (heads + 2 * groups) * head_dim,
        "positions": fields["max_sequence_length"],
        "one": 1,
    }
    if experts := fields.get("num_moe_experts"):
        ffn = fields["moe_ffn_hidden_size"]
        shared = fields.get("moe_shared_expert_intermediate_size") or 0
        known |= {"experts": experts, "expert ffn": ffn, "expert gate and up": 2 * ffn}
        known |= {"shared ffn": shared, "shared gate and up": 2 * shared}
    if fields.get("multi_latent_attention"):
        latent, rotary = fields["kv_lora_rank"], fields["qk_pos_emb_head_dim"]
        query, value = fields["qk_head_dim"], fields["v_head_dim"]
        known |= {"query latent": fields["q_lora_rank"] or 0, "queries": heads * (query + rotary)}
        known |= {"KV latent": latent, "KV latent and rotary": latent + rotary}
        known |= {"keys and values": heads * (query + value), "values": heads * value}
    return known


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
    choices = sorted(wanted - found) or sorted(wanted)
    for number, name in enumerate(sorted(found - wanted)):
        # Each search looks at every name; a mixture's file has tens of thousands.
        near = difflib.get_close_matches(name, choices, n=1) if number < HINTS else []
        hint = f" (nearest: {near[0]})" if near else ""
        lines.append(f"no row claims the {kind} {name}{hint}")
    return lines
