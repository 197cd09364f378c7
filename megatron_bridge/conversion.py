"""A model as both directions of conversion see it: family, sizes, rows, and names on each side."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge import families, hf, torch_dist
from megatron_bridge.config import DType
from megatron_bridge.errors import ConfigError, InputError, MappingError
from megatron_bridge.layouts import NORMALIZED_VOCAB, VOCAB, ModelShape
from megatron_bridge.mapping import Bound, Family, Slot
from megatron_bridge.sources.stored import Readable, blocks, raw
from megatron_bridge.tensors import Tensors

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Conversion:
    """A model's family, sizes and expanded rows: what both directions and the proof share."""

    family: Family
    config: dict[str, Any]
    shape: ModelShape
    bounds: tuple[Bound, ...]
    hf_prefix: bool = True
    """False where the Hugging Face file leaves the family's prefix off its names."""

    @classmethod
    def of_folder(
        cls, folder: Path, hf_prefix: bool = True, shown: str | None = None
    ) -> Conversion:
        """Read the `config.json` of a Hugging Face folder; `shown` is its name in errors."""
        config = families.read_config(folder)
        try:
            family = families.get(config.get("model_type"))
            shape = family.shape(config)
        except ConfigError as error:
            raise error.at(f"{shown or folder}: {error.where or 'config.json'}") from error
        if not hf_prefix:
            family = family.without_prefix()
        return cls(family, config, shape, tuple(family.expand(shape)), hf_prefix)

    @classmethod
    def of_weights(cls, weights: hf.Weights) -> Conversion:
        """Read the `config.json` beside weights, and see how they name their tensors."""
        source = weights.source
        model = cls.of_folder(source.files, shown=source.weights)
        prefix = model.family.prefix
        if prefix and not any(name.startswith(prefix) for name in weights.names):
            return cls.of_folder(source.files, hf_prefix=False)
        return model

    def as_native(self) -> Conversion:
        """The same model as transformers' own class holds it, where its class is remote code."""
        if self.family.native is None:
            return self
        family, config = self.family.native(self.config)
        shape = family.shape(config)
        return Conversion(family, dict(config), shape, tuple(family.expand(shape)))

    def padded_as(self, reader: Tensors) -> Conversion:
        """Take the padded vocabulary from a checkpoint; it may differ with tensor parallelism."""
        for bound in self.bounds:
            if bound.row.layout is VOCAB and bound.slot.key in reader.shapes():
                rows = reader.shapes()[bound.slot.key][0][0]
                if rows < self.shape.vocab:
                    raise InputError(
                        "The checkpoint's vocabulary is smaller than the config's",
                        where=f"{reader.folder}, {bound.slot.key}",
                        expected=f"at least {self.shape.vocab} rows",
                        got=f"{rows} rows",
                        fix="give the config.json that belongs to the checkpoint",
                    )
                return replace(self, shape=replace(self.shape, padded_vocab=rows))
        return self

    def pack(self, bound: Bound, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Hugging Face tensors to the Megatron tensor; errors name them."""
        try:
            return bound.row.layout.pack(parts, self.shape)
        except MappingError as error:
            raise MappingError(str(error), where=", ".join(bound.hf)) from error
        # What torch says of tensors that cannot be put together.
        except RuntimeError as error:
            raise MappingError(
                "The weights do not fit config.json",
                where=", ".join(bound.hf),
                expected=f"tensors that make one of {' x '.join(bound.row.sizes)}",
                got=", ".join(str(list(part.shape)) for part in parts),
                fix="use the config.json that belongs to the weights",
            ) from error

    def unpack(self, bound: Bound, whole: torch.Tensor) -> list[torch.Tensor]:
        """The Megatron tensor to Hugging Face tensors."""
        try:
            return bound.row.layout.unpack(whole, self.shape)
        except RuntimeError as error:  # PyTorch's, of a shape that cannot be cut so
            raise MappingError(
                "The checkpoint does not fit config.json",
                where=str(bound.slot),
                expected=f"a tensor of {' x '.join(bound.row.sizes)}",
                got=list(whole.shape),
                fix="use the config.json that belongs to the checkpoint",
            ) from error

    def weight_names(self, weights: hf.Weights) -> list[str]:
        """Tensors of the folder that rows must claim.

        A tied model's second embedding is not among them, nor are weights that have no place.
        """
        passed = {self.tied_copy(weights), *itertools.chain(*self.left_out(weights).values())}
        return [name for name in weights.names if name not in passed]

    def left_out(self, weights: hf.Weights) -> dict[str, list[str]]:
        """Weights of the folder that Megatron's model has no place for, by what they are."""
        found: dict[str, list[str]] = {}
        for pattern, reason in self.family.left_out(self.config).items():
            names = [name for name in weights.names if re.fullmatch(pattern, name)]
            found.setdefault(reason, []).extend(names)
        return found

    def layers_apart(self, names: Iterable[str]) -> str | None:
        """Say that the weights have another number of layers than `config.json`, or None."""
        rows = (name for row in self.family.rows for name in row.hf if "{layer}" in name)
        starts = "|".join({re.escape(name.partition("{layer}")[0]) for name in rows})
        numbers = [int(found[1]) for n in names if (found := re.match(rf"(?:{starts})(\d+)\.", n))]
        count = max(numbers, default=-1) + 1
        if count == self.shape.layers:
            return None
        return f"config.json says {self.shape.layers} layers, the weights have {count}"

    def changed(self) -> list[str]:
        """Hugging Face tensors that do not get the checkpoint's values, but rows of length 1."""
        bounds = [bound for bound in self.bounds if bound.row.layout is NORMALIZED_VOCAB]
        return [name for bound in bounds for name in bound.hf]

    def slots(self, reader: Tensors) -> list[Slot]:
        """The checkpoint's model tensors, one entry a layer."""
        axes = {bound.slot.key: len(bound.slot.index) for bound in self.bounds}
        return [
            Slot(key, index)
            for key, (size, _) in reader.shapes().items()
            if torch_dist.is_model_key(key)
            for index in itertools.product(*map(range, size[: axes.get(key, 0)]))
        ]

    def tied_copy(self, weights: hf.Weights) -> str | None:
        """Return the name of a tied model's second embedding, where the weights have one.

        One that is elsewhere is not read here: it is held against the checkpoint's digest later.

        Raises:
            MappingError: it is not equal to the first.
        """
        copy, original = self.family.tied
        if "untied" in self.shape.has or not {copy, original} <= set(weights.names):
            return None
        if weights.source.address is None and not _equal(
            weights.stored(copy), weights.stored(original)
        ):
            raise MappingError(
                "config.json says that the embeddings are tied, and the weights differ",
                where=f"{weights.source.weights}: {copy} and {original}",
                expected="equal tensors, or one of them",
                got="two different tensors",
                fix="set tie_word_embeddings to false if the output layer was trained apart",
            )
        return copy


def cast(bound: Bound, wanted: DType | None, own: torch.dtype) -> torch.dtype:
    """Return the number format that a tensor has after a cast of the model; None casts nothing."""
    return own if wanted is None or bound.row.keeps_dtype else hf.dtype_of(wanted)


def _equal(one: Readable, other: Readable) -> bool:
    """Compare two tensors bit by bit, in blocks of rows."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return all(raw(one.read(*rows)) == raw(other.read(*rows)) for rows in blocks(one))
