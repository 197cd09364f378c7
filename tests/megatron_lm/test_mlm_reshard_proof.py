"""Resharding: parts of the optimizer's state that are lost, and what was written read back."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mlm_folders import DATA, load

from megatron_bridge import torch_dist
from megatron_bridge.errors import InputError, ProofError
from megatron_bridge.megatron_lm import optimizer
from megatron_bridge.megatron_lm import reshard as module
from megatron_bridge.megatron_lm.reshard import reshard
from megatron_bridge.torch_dist import Reader, is_model_key

RANKS = [f"mp_rank_0{tensor}_00{stage}" for stage in (0, 1) for tensor in (0, 1)]


def run(folder: Path, change: Callable[[str, dict[str, Any], Path], None]) -> Path:
    """The run of two tensor ranks and two stages, each rank's file changed."""
    for rank in RANKS:
        tree, place = load("dense-torch", rank), folder / "iter_0000003" / rank
        place.mkdir(parents=True)
        change(rank, tree, place)
        torch.save(tree, place / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("3")
    return folder


def distributed(_: str, tree: dict[str, Any], place: Path) -> None:
    """Give a rank a distributed optimizer, whose moments are the weights: the last come first."""
    parts: list[torch.Tensor] = []
    for name, weight in reversed(tree["model"].items()):
        if "_extra_state" not in name:
            parts.append(torch.zeros(-sum(map(len, parts)) % 64))
            parts.append(weight.flatten())
    flat = torch.cat(parts)
    values = {"param": flat, "exp_avg": flat.clone(), "numel_unpadded": len(flat)}
    buffers = {0: {(torch.float32, torch.float32): values}, "buckets_coalesced": True}
    torch.save(buffers, place / "distrib_optim.pt")


def test_a_distributed_optimizer_of_many_ranks_is_that_of_their_weights(tmp_path: Path) -> None:
    found = reshard(run(tmp_path / "run", distributed), tmp_path / "out")
    assert found["compared"]["tensors"] == found["tensors"] + found["optimizer_tensors"] == 27
    with Reader(tmp_path / "out" / "iter_0000003") as reader:
        for key in filter(is_model_key, reader.shapes()):
            for kind in ("param", "exp_avg"):
                assert torch.equal(reader.read(f"optimizer.state.{kind}.{key}"), reader.read(key))


@pytest.mark.parametrize("lost", [RANKS[:1], RANKS[1:2], RANKS[:2], RANKS[2:], RANKS[1::2]])
def test_a_rank_without_its_distributed_optimizer_is_named(tmp_path: Path, lost: list[str]) -> None:
    folder = run(tmp_path / "run", distributed)
    for rank in lost:
        (folder / "iter_0000003" / rank / "distrib_optim.pt").unlink()
    names = ", ".join(f"{rank}/distrib_optim.pt" for rank in lost)
    with pytest.raises(InputError, match=rf"lack the optimizer.*none in {names}\. What"):
        reshard(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_states_must_have_the_shapes_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the ranks have: half of the layers is seen."""
    folder = run(tmp_path / "run", distributed)
    for rank in RANKS[2:]:
        (folder / "iter_0000003" / rank / "distrib_optim.pt").unlink()
    monkeypatch.setattr(optimizer, "_check_ranks", lambda *_: None)
    with pytest.raises(InputError, match="does not fit the weights"):
        reshard(folder, tmp_path / "out")


def test_a_rank_without_its_optimizer_is_named_and_a_run_without_one_said(tmp_path: Path) -> None:
    def one(rank: str, tree: dict[str, Any], _: Path) -> None:
        if rank == RANKS[2]:
            del tree["optimizer"]

    def parts(rank: str, tree: dict[str, Any], _: Path) -> None:
        if rank == RANKS[3]:
            tree["optimizer"]["state"] = {}

    for number, change in enumerate((one, parts)):
        with pytest.raises(InputError, match=rf"none in {RANKS[2 + number]}/model_optim_rng\.pt"):
            reshard(run(tmp_path / str(number), change), tmp_path / "out")
    none = run(tmp_path / "none", lambda _, tree, __: tree.pop("optimizer"))
    found = reshard(none, tmp_path / "out")
    assert found["optimizer_tensors"] == 0
    assert "holds no optimizer" in found["notes"][0]


def test_an_optimizer_of_another_kind_is_a_sentence(tmp_path: Path) -> None:
    odd = run(tmp_path / "run", lambda _, tree, __: tree.update(optimizer=5))
    with pytest.raises(InputError, match="param_groups"):
        reshard(odd, tmp_path / "out")


def test_one_bit_that_is_written_otherwise_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = torch_dist.write_file

    def flipped(path: Path, chunks: Any) -> Any:
        *others, last = chunks

        def produce() -> torch.Tensor:
            values = last.produce()
            values.view(torch.int32).view(-1)[-1] ^= 1
            return values

        return write(path, [*others, dataclasses.replace(last, produce=produce)])

    monkeypatch.setattr(torch_dist, "write_file", flipped)
    with pytest.raises(ProofError, match="differs from what was read"):
        reshard(DATA / "dense-torch", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_comparison_goes_on_without_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP_BYTES", 30_000)
    same, calls = module.same_bits, []

    def killed(one: torch.Tensor, other: torch.Tensor) -> bool:
        calls.append(1)
        if len(calls) == 30:
            raise KeyboardInterrupt
        return same(one, other)

    monkeypatch.setattr(module, "same_bits", killed)
    with pytest.raises(KeyboardInterrupt):
        reshard(DATA / "dense-torch", tmp_path / "out")
    monkeypatch.setattr(torch_dist, "write_file", None)
    assert reshard(DATA / "dense-torch", tmp_path / "out")["compared"]["tensors"] == 27


def test_another_cut_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError

    monkeypatch.setattr(module, "GROUP_BYTES", 30_000)
    with pytest.raises(OSError):  # noqa: PT011
        reshard(DATA / "dense-torch", tmp_path / "two", full)
    monkeypatch.setattr(module, "GROUP_BYTES", 20_000)
    for out in ("one", "two"):
        reshard(DATA / "dense-torch", tmp_path / out)
    one, two = (sorted(p for p in (tmp_path / n).rglob("*.*")) for n in ("one", "two"))
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in two]


def test_a_progress_that_fails_ends_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("closed")

    monkeypatch.setattr(module, "GROUP_BYTES", 30_000)
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="closed") as kept:
        reshard(DATA / "dense-torch", tmp_path / "out", fails)
    assert set(threading.enumerate()) <= before, kept
