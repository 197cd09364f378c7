"""Whatever Megatron called a tensor, rows find it; what no row asks for stays visible."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from megatron_bridge import families
from megatron_bridge.errors import InputError
from megatron_bridge.megatron_lm.view import seen
from megatron_bridge.tensors import Shape


@dataclass
class Held:
    """A checkpoint in memory."""

    tensors: dict[str, torch.Tensor]
    folder: Path = Path("held")
    asked: list[str] = field(default_factory=list)

    def shapes(self) -> dict[str, Shape]:
        return {key: (tuple(value.shape), value.dtype) for key, value in self.tensors.items()}

    def read(
        self, key: str, index: tuple[int, ...] = (), start: int = 0, stop: int | None = None
    ) -> torch.Tensor:
        self.asked.append(key)
        return self.tensors[key][index][start:stop]

    def close(self) -> None:
        pass


MODELS = {name: families.get(name) for name in ("llama", "mixtral", "qwen2_moe", "deepseek_v3")}


def canonical(name: str) -> dict[str, torch.Tensor]:
    """A family's toy as Megatron stores it by default, every value different."""
    family = MODELS[name]
    shape = family.shape(family.toy)
    found: dict[str, torch.Tensor] = {}
    for bound in family.expand(shape):
        size = (*bound.counts(shape), *map(shape.size, bound.row.sizes))
        if bound.slot.key not in found:
            first = sum(t.numel() for t in found.values())
            count = torch.Size(size).numel()
            found[bound.slot.key] = torch.arange(first, first + count).reshape(size)
    return found


def by_layer(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each layer under a key of its own."""
    found = {}
    for key, value in held.items():
        if re.match(r"decoder\.layers\.[a-z]", key):
            for layer, one in enumerate(value):
                found[key.replace("layers.", f"layers.{layer}.", 1)] = one
        else:
            found[key] = value
    return found


def by_expert(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each expert under a key of its own, as single shards are written."""
    found = {}
    for key, value in by_layer(held).items():
        if ".experts.experts." in key:
            for expert, one in enumerate(value):
                name = key.replace(".experts.experts.", f".experts.experts.{expert}.")
                found[name] = one
        else:
            found[key] = value
    return found


def halved(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gate and up apart."""
    found: dict[str, torch.Tensor] = {}
    for key, value in held.items():
        if key.endswith("linear_fc1.weight"):
            gate, up = value.chunk(2, dim=-2)
            found |= {f"{key}_w": gate, f"{key}_v": up}
        else:
            found[key] = value
    return found


def wrapped(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"model.module.{key}": value for key, value in held.items()}


def local_norms(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Norms by themselves."""
    names = {
        "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
        "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm.",
        "self_attention.linear_q_up_proj.layer_norm_": "self_attention.q_layernorm.",
        "self_attention.linear_kv_up_proj.layer_norm_": "self_attention.kv_layernorm.",
    }
    found = {}
    for key, value in held.items():
        for one, other in names.items():
            key = key.replace(one, other)
        found[key] = value
    return found


def fused_norms(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        key.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"): value
        for key, value in held.items()
    }


Way = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
WAYS: dict[str, tuple[Way, ...]] = {
    "as it is": (),
    "by layer": (by_layer,),
    "by expert": (by_expert,),
    "halved": (halved,),
    "wrapped": (wrapped,),
    "local norms": (local_norms,),
    "fused norms": (fused_norms,),
    "all at once": (by_expert, local_norms, halved, wrapped),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_rows_find_their_tensors(name: str, way: str) -> None:
    family, held = MODELS[name], canonical(name)
    shape = family.shape(family.toy)
    bounds, other = family.expand(shape), held
    for change in WAYS[way]:
        other = change(other)
    other |= {"optimizer.state.exp_avg.x": torch.zeros(1), "rng_state": torch.zeros(1)}
    view = seen(Held(other), bounds, shape)
    for bound in bounds:
        key, index = bound.slot.key, bound.slot.index
        whole = held[key][index]
        assert torch.equal(view.read(key, index), whole)
        if whole.ndim:
            cut = len(whole) // 3
            assert torch.equal(view.read(key, index, cut, len(whole) - 1), whole[cut:-1])
        assert view.shapes()[key] == (tuple(held[key].shape), torch.int64)
    assert set(view.shapes()) == {*held, "optimizer.state.exp_avg.x", "rng_state"}


def test_what_is_there_already_is_read_as_it_is() -> None:
    family = MODELS["llama"]
    shape = family.shape(family.toy)
    held = Held(canonical("llama"))
    assert seen(held, family.expand(shape), shape) is held


def test_what_no_row_asks_for_stays_visible() -> None:
    """Further layers, and tensors of another kind."""
    family = MODELS["llama"]
    shape = family.shape(family.toy)
    held = canonical("llama")
    key = "decoder.layers.self_attention.linear_proj.weight"
    held[key] = torch.cat([held[key], held[key][:1]])
    held = by_layer(held) | {"decoder.layers.0.mlp.router.weight": torch.zeros(2)}
    shapes = seen(Held(held), family.expand(shape), shape).shapes()
    extra = {"decoder.layers.4.self_attention.linear_proj.weight"}
    assert shapes.keys() == canonical("llama").keys() | extra | {
        "decoder.layers.0.mlp.router.weight"
    }
    stacked = canonical("llama")
    stacked[key] = torch.cat([stacked[key], stacked[key][:1]])
    shapes = seen(Held(wrapped(stacked)), family.expand(shape), shape).shapes()
    assert f"model.module.{key}[4]" in shapes


def test_a_missing_layer_or_expert_is_named() -> None:
    family = MODELS["mixtral"]
    shape = family.shape(family.toy)
    for lost, slot in (
        ("decoder.layers.2.self_attention.linear_qkv.weight", "[2]"),
        ("decoder.layers.0.self_attention.linear_qkv.weight", "[0]"),
        ("decoder.layers.1.mlp.experts.experts.5.linear_fc2.weight", "[1][5]"),
    ):
        held = by_expert(canonical("mixtral"))
        del held[lost]
        with pytest.raises(InputError, match=re.escape(slot)):
            seen(Held(held), family.expand(shape), shape)


FC1 = "decoder.layers.0.mlp.linear_fc1.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda held: {f"module.{FC1}": held[FC1]}, "there twice"),
        (lambda held: {f"{FC1}_w": held[FC1], f"{FC1}_v": held[FC1]}, "there twice"),
        (lambda held: {FC1.replace("0", "1"): held[FC1][2:]}, "layers or experts"),
        (lambda held: {FC1.replace("0", "1"): held[FC1].float()}, "layers or experts.*float32"),
    ],
)
def test_tensors_that_do_not_fit_together_are_refused(change: Way, words: str) -> None:
    family = MODELS["llama"]
    shape = family.shape(family.toy)
    held = by_layer(canonical("llama"))
    with pytest.raises(InputError, match=words):
        seen(Held(held | change(held)), family.expand(shape), shape)


@pytest.mark.parametrize("change", [{}, {f"{FC1}_v": torch.ones(4, 2)}])
def test_halves_without_each_other_are_refused(change: dict[str, torch.Tensor]) -> None:
    family = MODELS["llama"]
    shape = family.shape(family.toy)
    held = halved(by_layer(canonical("llama")))
    del held[f"{FC1}_v"]
    with pytest.raises(InputError, match="its gate"):
        seen(Held(held | change), family.expand(shape), shape)
