"""How Hugging Face tensors lie inside the one Megatron checkpoint tensor.

Layouts only move values: `unpack(pack(parts)) == parts` bit for bit. Arithmetic would lose bits (in
bfloat16 `(1 + w) - 1` does not return `w`). They are named objects, so that errors can name them.

Shapes below: `rows` is a weight's first dimension; trailing dimensions (a bias has none) are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from megatron_bridge.errors import MappingError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ModelShape:
    """All that packing needs to know of a model; built from `config.json` by its family."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    padded_vocab: int
    has: frozenset[str] = frozenset()
    """Optional parts that this model has ("untied", "linear bias"); rows name what they need."""
    experts: int = 0
    layer_sets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Layers by kind ("dense", "sparse"); rows name the kind they belong to."""
    stacked: bool = True
    """All layers of a tensor under one checkpoint key; False where layers are of several kinds."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Further dimensions of Megatron tensors by name; see `mapping.sizes_of`."""

    def size(self, name: str) -> int:
        """The size of a Megatron tensor's dimension, by the name that rows give it."""
        return self.padded_vocab if name == "vocabulary" else self.sizes[name]

    @property
    def qkv_rows(self) -> list[int]:
        """Rows of query, key and value."""
        return [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]


class Layout(Protocol):
    """One way in which Hugging Face tensors make up one Megatron tensor."""

    @property
    def name(self) -> str:
        """The name shown in errors and certificates."""

    @property
    def by_rows(self) -> bool:
        """True where packing only moves whole rows, so that it can be done in blocks of rows."""

    def pack(self, parts: Sequence[Tensor], shape: ModelShape) -> Tensor:
        """Hugging Face tensors to the Megatron tensor."""

    def unpack(self, whole: Tensor, shape: ModelShape) -> list[Tensor]:
        """The Megatron tensor to Hugging Face tensors, in the order of the row."""


@dataclass(frozen=True)
class AsIs:
    """The same tensor on both sides."""

    name: str = "AS_IS"
    by_rows: bool = True

    def pack(self, parts: Sequence[Tensor], shape: ModelShape) -> Tensor:
        """Return the only part."""
        (part,) = parts
        return part

    def unpack(self, whole: Tensor, shape: ModelShape) -> list[Tensor]:
        """Return the tensor as the only part."""
        return [whole]


@dataclass(frozen=True)
class Stacked:
    """Two equal parts, rows of the first above rows of the second (gate above up)."""

    name: str = "STACKED"
    by_rows: bool = True

    def pack(self, parts: Sequence[Tensor], shape: ModelShape) -> Tensor:
        """`[n, ...]` twice to `[2n, ...]`."""
        import torch

        first, second = parts
        if first.shape != second.shape:
            raise MappingError(
                f"{self.name} needs two tensors of one shape",
                got=f"{list(first.shape)} and {list(second.shape)}",
            )
        return torch.cat([first, second])

    def unpack(self, whole: Tensor, shape: ModelShape) -> list[Tensor]:
        """`[2n, ...]` to `[n, ...]` twice."""
        return list(whole.chunk(2))


@dataclass(frozen=True)
class GroupedQKV:
    """Query, key and value interleaved by query group: `[q..q k v]` for each KV head.

    This is Megatron's `linear_qkv` (see `SelfAttention.get_query_key_value_tensors`).
    """

    name: str = "GROUPED_QKV"
    by_rows: bool = True

    def pack(self, parts: Sequence[Tensor], shape: ModelShape) -> Tensor:
        """q `[heads*d, ...]`, k and v `[kv_heads*d, ...]` to `[(heads+2*kv_heads)*d, ...]`."""
        import torch

        want = shape.qkv_rows
        got = [part.shape[0] for part in parts]
        if got != want:
            raise MappingError(
                f"{self.name}: query, key and value rows do not fit the config",
                expected=f"{want} rows (heads, KV heads, KV heads times head_dim)",
                got=f"{got} rows",
            )
        groups = [p.reshape(shape.kv_heads, -1, *p.shape[1:]) for p in parts]
        return torch.cat(groups, dim=1).flatten(0, 1)

    def unpack(self, whole: Tensor, shape: ModelShape) -> list[Tensor]:
        """The reverse of `pack`."""
        import torch

        per_group = shape.heads // shape.kv_heads * shape.head_dim
        sizes = [per_group, shape.head_dim, shape.head_dim]
        groups = whole.reshape(shape.kv_heads, sum(sizes), *whole.shape[1:])
        parts = torch.split_with_sizes(groups, sizes, dim=1)
        return [part.flatten(0, 1) for part in parts]


@dataclass(frozen=True)
class FusedQKV:
    """One tensor, all query rows above all key rows above all value rows, made grouped.

    `transposed` is for GPT-2's Conv1D, whose weights (not biases) lie columns first.
    """

    name: str = "FUSED_QKV"
    transposed: bool = False

    @property
    def by_rows(self) -> bool:
        """A transposed weight is not."""
        return not self.transposed

    def pack(self, parts: Sequence[Tensor], shape: ModelShape) -> Tensor:
        """`[(heads+2*kv_heads)*d, ...]`, or its transpose, to the same grouped by KV head."""
        import torch

        part = self._turn(parts[0])
        if part.shape[0] != sum(shape.qkv_rows):
            raise MappingError(
                f"{self.name}: the fused tensor does not fit the config",
                expected=f"{sum(shape.qkv_rows)} rows for query, key and value",
                got=f"{part.shape[0]} rows",
            )
        return GROUPED_QKV.pack(torch.split_with_sizes(part, shape.qkv_rows), shape)

    def unpack(self, whole: Tensor, shape: ModelShape) -> list[Tensor]:
        """The reverse of `pack`."""
        import torch

        return [self._turn(torch.cat(GROUPED_QKV.unpack(whole, shape)))]

    def _turn(self, tensor: Tensor) -> Tensor:
        return tensor.t().contiguous() if self.transposed and tensor.ndim == 2 else tensor


@dataclass(frozen=True)
class Transposed:
    """A matrix stored columns first, as GPT-2's Conv1D does."""

    name: str = "TRANSPOSED"
    by_rows: bool = False

    def pack(self, parts: Sequence[Tensor], shape: ModelShape) -> Tensor:
        """`[in, out]` to `[out, in]`."""
        (part,) = parts
        return part.t().contiguous()

    def unpack(self, whole: Tensor, shape: ModelShape) -> list[Tensor]:
        """`[out, in]` to `[in, out]`."""
        return [whole.t().contiguous()]


@dataclass(frozen=True)
class Vocab:
    """Rows by token id, padded with zeros up to `padded_vocab`; padding never goes back."""

    name: str = "VOCAB"
    by_rows: bool = True

    def pack(self, parts: Sequence[Tensor], shape: ModelShape) -> Tensor:
        """`[vocab, ...]` to `[padded_vocab, ...]`."""
        import torch

        (part,) = parts
        if part.shape[0] != shape.vocab:
            raise MappingError(
                "The embedding does not fit the config's vocabulary",
                expected=f"{shape.vocab} rows",
                got=f"{part.shape[0]} rows",
                fix="check vocab_size in config.json",
            )
        padding = part.new_zeros(shape.padded_vocab - shape.vocab, *part.shape[1:])
        return torch.cat([part, padding])

    def unpack(self, whole: Tensor, shape: ModelShape) -> list[Tensor]:
        """`[padded_vocab, ...]` to `[vocab, ...]`."""
        return [whole[: shape.vocab]]


@dataclass(frozen=True)
class NormalizedVocab(Vocab):
    """`VOCAB` whose rows get length 1 on their way out: the one layout that changes values.

    It is for exports only, of an output layer that is normalised in every forward pass.
    """

    name: str = "NORMALIZED_VOCAB"
    by_rows: bool = False

    def unpack(self, whole: Tensor, shape: ModelShape) -> list[Tensor]:
        """`[padded_vocab, hidden]` to `[vocab, hidden]` with rows of length 1."""
        import torch

        (part,) = super().unpack(whole, shape)
        return [torch.nn.functional.normalize(part.float(), dim=-1).to(part.dtype)]


AS_IS, STACKED, GROUPED_QKV, VOCAB = AsIs(), Stacked(), GroupedQKV(), Vocab()
FUSED_QKV, FUSED_QKV_T = FusedQKV(), FusedQKV("FUSED_QKV_T", transposed=True)
TRANSPOSED, NORMALIZED_VOCAB = Transposed(), NormalizedVocab()
