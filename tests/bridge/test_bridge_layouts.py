"""Layouts against orders written out by hand, and the law that unpacking undoes packing."""

from __future__ import annotations

import pytest
import torch

from megatron_bridge.errors import MappingError
from megatron_bridge.layouts import AS_IS, GROUPED_QKV, STACKED, VOCAB, ModelShape

SHAPE = ModelShape(layers=3, hidden=7, heads=6, kv_heads=2, head_dim=2, vocab=11, padded_vocab=16)


def rows(*labels: float) -> torch.Tensor:
    """One row a label, `[n, 7]`."""
    return torch.tensor(labels)[:, None].expand(-1, 7).contiguous()


def test_query_key_value_are_grouped_by_kv_head() -> None:
    query = rows(*range(12))  # heads 0..5 of two rows each; heads 0..2 belong to KV head 0
    key = rows(100, 101, 102, 103)
    value = rows(200, 201, 202, 203)
    packed = GROUPED_QKV.pack([query, key, value], SHAPE)
    expected = [0, 1, 2, 3, 4, 5, 100, 101, 200, 201, 6, 7, 8, 9, 10, 11, 102, 103, 202, 203]
    assert packed[:, 0].tolist() == expected


def test_gate_lies_above_up() -> None:
    packed = STACKED.pack([rows(1, 2), rows(3, 4)], SHAPE)
    assert packed[:, 0].tolist() == [1, 2, 3, 4]


def test_vocabulary_is_padded_with_zeros_and_cut_again() -> None:
    packed = VOCAB.pack([rows(*range(1, 12))], SHAPE)
    assert packed[:, 0].tolist() == [*range(1, 12), 0, 0, 0, 0, 0]
    (back,) = VOCAB.unpack(packed, SHAPE)
    assert back[:, 0].tolist() == list(range(1, 12))


@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        (AS_IS, [(5, 7)]),
        (STACKED, [(5, 7), (5, 7)]),
        (GROUPED_QKV, [(12, 7), (4, 7), (4, 7)]),
        (GROUPED_QKV, [(12,), (4,), (4,)]),
        (VOCAB, [(11, 7)]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unpack_undoes_pack_bit_for_bit(layout, sizes, dtype) -> None:
    parts = [torch.randn(size).to(dtype) for size in sizes]
    back = layout.unpack(layout.pack(parts, SHAPE), SHAPE)
    assert len(back) == len(parts)
    for part, other in zip(parts, back, strict=True):
        assert torch.equal(part, other)


@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        (GROUPED_QKV, [(4, 7), (12, 7), (4, 7)]),
        (GROUPED_QKV, [(12, 7), (8, 7), (8, 7)]),
        (STACKED, [(5, 7), (6, 7)]),
        (VOCAB, [(12, 7)]),
    ],
)
def test_sizes_that_do_not_fit_the_config_are_refused(layout, sizes) -> None:
    with pytest.raises(MappingError):
        layout.pack([torch.zeros(size) for size in sizes], SHAPE)


def test_packing_commutes_with_tensor_parallel_slices() -> None:
    """Two ranks' own packed tensors, stacked, are the whole packed tensor."""
    query, key, value = torch.randn(12, 7), torch.randn(4, 7), torch.randn(4, 7)
    whole = GROUPED_QKV.pack([query, key, value], SHAPE)
    half = ModelShape(
        layers=3, hidden=7, heads=3, kv_heads=1, head_dim=2, vocab=11, padded_vocab=16
    )
    ranks = [
        GROUPED_QKV.pack([part.chunk(2)[rank] for part in (query, key, value)], half)
        for rank in (0, 1)
    ]
    assert torch.equal(torch.cat(ranks), whole)
