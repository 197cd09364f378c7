"""The old `torch` layout as global tensors, against hand merges and Megatron's own `torch_dist`."""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from mlm_folders import DATA, TORCH, iteration, load, save

from megatron_bridge.errors import ConfigError, InputError, MappingError
from megatron_bridge.megatron_lm.optimizer import read_state
from megatron_bridge.megatron_lm.ranks import Ranks
from megatron_bridge.sources.ranges import LocalFile
from megatron_bridge.torch_dist import Reader, is_model_key

LAYERS = "decoder.layers."
QKV, PROJ = "self_attention.linear_qkv.weight", "self_attention.linear_proj.weight"
FC1, FC2 = "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_both_formats_of_one_run_are_the_same_tensors(name: str) -> None:
    with (
        Ranks(iteration(f"{name}-torch")) as ranks,
        Reader(iteration(f"{name}-torch_dist")) as reader,
    ):
        model = {key: shape for key, shape in reader.shapes().items() if is_model_key(key)}
        assert ranks.shapes() == model
        for key in model:
            assert torch.equal(ranks.read(key), reader.read(key))


def test_two_tensor_ranks_and_two_stages_are_a_hand_merge() -> None:
    found = {(t, p): load("dense-torch", f"mp_rank_0{t}_00{p}")["model"]
             for t in (0, 1) for p in (0, 1)}  # fmt: skip
    with Ranks(iteration("dense-torch")) as ranks:
        for p in (0, 1):
            one, two = (found[t, p] for t in (0, 1))
            (a, b), (c, d) = (m[f"{LAYERS}0.{FC1}"].chunk(2) for m in (one, two))
            assert torch.equal(ranks.read(LAYERS + FC1, (p,)), torch.cat([a, c, b, d]))
            for name, axis in ((QKV, 0), (PROJ, 1), (FC2, 1)):
                whole = torch.cat([m[f"{LAYERS}0.{name}"] for m in (one, two)], axis)
                assert torch.equal(ranks.read(LAYERS + name, (p,)), whole)
        words = [found[t, 0]["embedding.word_embeddings.weight"] for t in (0, 1)]
        assert torch.equal(ranks.read("embedding.word_embeddings.weight"), torch.cat(words))


def test_chunks_of_stages_interleave_their_layers() -> None:
    first, second = (load("chunks-torch", f"mp_rank_00_00{p}") for p in (0, 1))
    order = [first["model0"], second["model0"], first["model1"], second["model1"]]
    with Ranks(iteration("chunks-torch")) as ranks:
        for layer, chunk in enumerate(order):
            assert torch.equal(ranks.read(LAYERS + FC2, (layer,)), chunk[f"{LAYERS}0.{FC2}"])


def test_uneven_stages_are_numbered_through() -> None:
    last = load("half-torch", "mp_rank_00_001")["model"]
    with Ranks(iteration("half-torch")) as ranks:
        assert ranks.shapes()[LAYERS + QKV][0][0] == 3
        assert torch.equal(ranks.read(LAYERS + QKV, (2,), 0, 24), last[f"{LAYERS}1.{QKV}"])


@pytest.mark.parametrize("name", TORCH)
def test_rows_are_slices_of_the_whole(name: str) -> None:
    with Ranks(iteration(f"{name}-torch")) as ranks:
        for key, (shape, dtype) in ranks.shapes().items():
            whole = ranks.read(key)
            assert (tuple(whole.shape), whole.dtype) == (shape, dtype)
            index = tuple(n - 1 for n in shape[:-2])
            part = whole[index]
            rows = part.shape[0]
            assert torch.equal(
                ranks.read(key, index, rows // 3, rows // 2), part[rows // 3 : rows // 2]
            )


def test_a_tied_copy_is_one_tensor_with_the_embedding() -> None:
    with Ranks(iteration("tied-torch")) as ranks:
        assert "output_layer.weight" not in ranks.shapes()
        assert ranks.read("embedding.word_embeddings.weight").shape == (112, 24)


def test_only_what_is_asked_for_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read, count = LocalFile.read_into, [0]

    def counted(self: LocalFile, offset: int, target: memoryview) -> None:
        count[0] += len(target)
        read(self, offset, target)

    with Ranks(iteration("dense-torch")) as ranks:
        monkeypatch.setattr(LocalFile, "read_into", counted)
        ranks.read(LAYERS + FC1, (1,), 10, 20)
    # The rows, and the zip's header of each rank's storage.
    assert 10 * 24 * 4 <= count[0] <= 10 * 24 * 4 + 2 * 30


@pytest.mark.parametrize(("kind", "name"), [("param", "sharded"), ("fp32_param", "half")])
def test_masters_of_the_optimizer_are_the_weights(kind: str, name: str) -> None:
    """Holds the order of parameters in groups, and their places in buffers."""
    with Ranks(iteration(f"{name}-torch")) as ranks:
        state = read_state(ranks.files)
        assert state is not None
        for rank, parts in state.tensors[kind].items():
            for chunk, model in zip(parts, ranks.trees[rank], strict=True):
                weights = {n: t for n, t in model.items() if "_extra_state" not in n}
                assert chunk.keys() == weights.keys()
                for key, master in chunk.items():
                    values = weights[key].read()
                    assert torch.equal(master.read().to(values.dtype), values)


def test_arguments_are_plain_values() -> None:
    with Ranks(iteration("dense-torch")) as ranks:
        assert ranks.iteration == 3
        assert ranks.arguments["rotary_base"] == 5000
        assert ranks.arguments["params_dtype"] is torch.float32
        assert str(ranks.arguments["model_type"]) == "megatron.core.enums.ModelType(1)"
        assert ranks.extra_states == 18


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(DATA / "dense-torch", tmp_path / "run")
    return tmp_path / "run" / "iter_0000003"


def test_a_missing_rank_is_named(copy: Path) -> None:
    shutil.rmtree(copy / "mp_rank_01_000")
    with pytest.raises(InputError, match="no mp_rank_01_000"):
        Ranks(copy)


def test_a_norm_that_differs_between_ranks_is_named(copy: Path) -> None:
    with Ranks(copy) as ranks:
        norm = ranks.read("decoder.final_layernorm.weight")
    path = copy / "mp_rank_01_001" / "model_optim_rng.pt"
    values, changed = norm.numpy().tobytes(), (norm + 1).numpy().tobytes()
    assert path.read_bytes().count(values) == 1
    path.write_bytes(path.read_bytes().replace(values, changed))
    with Ranks(copy) as ranks, pytest.raises(InputError, match=r"same values.*final_layernorm"):
        ranks.read("decoder.final_layernorm.weight")


@pytest.mark.parametrize(("other", "same"), [([float("nan"), 0.0], True), ([1.0, -0.0], False)])
def test_copies_are_compared_bit_by_bit(tmp_path: Path, other: list[float], same: bool) -> None:
    name = "decoder.final_layernorm.weight"
    values = torch.tensor(other)
    ranks = {f"mp_rank_0{t}": {name: values if t or same else values.abs()} for t in (0, 1)}
    with Ranks(save(tmp_path, ranks)) as found:
        if same:
            assert found.read(name).isnan().tolist() == [True, False]
        else:
            with pytest.raises(InputError, match="same values"):
                found.read(name)


@pytest.mark.parametrize(("axis", "lacks"), [("tensor", 0), ("tensor", 1), ("expert", 0)])
def test_a_tensor_that_a_rank_lacks_is_named(tmp_path: Path, axis: str, lacks: int) -> None:
    grouped = {r: experts(r, "grouped") for r in (0, 1)}
    for n in (1, 2):
        del grouped[lacks][f"{LAYERS}0.mlp.experts.linear_fc{n}.weight1"]
    place = "mp_rank_00_00{}" if axis == "expert" else "mp_rank_0{}"
    folder = save(tmp_path, {place.format(r): model for r, model in grouped.items()},
                  **{f"{axis}_model_parallel_size": 2}, num_experts=4)  # fmt: skip
    with pytest.raises(MappingError, match=rf"linear_fc1.*expert 1 in {place.format(lacks)}"):
        Ranks(folder)


@pytest.mark.parametrize("lacks", [0, 1])
def test_a_chunk_that_a_rank_lacks_is_named(tmp_path: Path, lacks: int) -> None:
    for rank in (0, 1):
        (tmp_path / f"mp_rank_0{rank}").mkdir()
        one = {f"{LAYERS}0.{FC2}": torch.ones(4, 3)}
        tree = {"model0": one} | ({"model1": one} if rank != lacks else {})
        torch.save(tree, tmp_path / f"mp_rank_0{rank}" / "model_optim_rng.pt")
    with pytest.raises(MappingError, match=f"linear_fc2.*layer 0 in mp_rank_0{lacks}"):
        Ranks(tmp_path)


class Payload:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


@pytest.mark.parametrize("key", ["args", "optimizer", "model"])
def test_a_payload_is_refused_before_it_runs(tmp_path: Path, key: str) -> None:
    tree = {"args": Namespace(a=1), "model": {}, key: Payload(tmp_path / "ran")}
    (tmp_path / "mp_rank_00").mkdir()
    torch.save(tree, tmp_path / "mp_rank_00" / "model_optim_rng.pt")
    with pytest.raises(InputError, match="made to run code"):
        Ranks(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ([1], "holds no model.*list"),
        ({1: 2}, "holds no model"),
        ({"modelfoo": {}}, "holds no model.*modelfoo"),
        ({"model": [1]}, "model_optim_rng.pt, model.*list"),
        ({"model": {}, "args": 5}, "model_optim_rng.pt, args.*int"),
        ({"model": {}, "iteration": "x"}, "model_optim_rng.pt, iteration.*str"),
    ],
)
def test_a_file_that_holds_something_else_is_a_sentence(
    tmp_path: Path, tree: Any, words: str
) -> None:
    (tmp_path / "mp_rank_00").mkdir()
    torch.save(tree, tmp_path / "mp_rank_00" / "model_optim_rng.pt")
    with pytest.raises(InputError, match=words):
        Ranks(tmp_path)


def test_an_unknown_tensor_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    folder = save(tmp_path, {"mp_rank_00": {f"{LAYERS}0.mlp.linear_fc3.weight": torch.ones(2, 2)}})
    with pytest.raises(MappingError, match=r"linear_fc3.*mlp\.linear_fc"):
        Ranks(folder)


def experts(rank: int, form: str) -> dict[str, torch.Tensor]:
    """Two local experts of [gate 3, up 3] x 4 in one of Megatron's forms."""
    one = torch.arange(48.0).reshape(2, 6, 4) + 100 * rank
    two = torch.arange(24.0).reshape(2, 4, 3) - 100 * rank
    names = f"{LAYERS}0.mlp.experts."
    if form == "sequential":
        return {
            f"{names}local_experts.{e}.linear_fc{n}.weight": tensor[e]
            for e in (0, 1)
            for n, tensor in ((1, one), (2, two))
        }
    if form == "grouped":
        return {
            f"{names}linear_fc{n}.weight{e}": tensor[e]
            for e in (0, 1)
            for n, tensor in ((1, one), (2, two))
        }
    # The first grouped layer: all experts in one matrix, [in, out] each.
    return {
        f"{names}weight1": one.transpose(1, 2).reshape(4, -1),
        f"{names}weight2": two.transpose(1, 2).reshape(-1, 4),
    }


@pytest.mark.parametrize("form", ["sequential", "grouped", "fused"])
def test_experts_in_each_form_are_the_same(tmp_path: Path, form: str) -> None:
    ranks = {f"mp_rank_00_00{e}": experts(e, form) for e in (0, 1)}
    sizes = {"expert_model_parallel_size": 2, "num_experts": 4, "moe_layer_freq": 1}
    with Ranks(save(tmp_path, ranks, **sizes)) as found:
        fc1, fc2 = (f"{LAYERS}mlp.experts.experts.linear_fc{n}.weight" for n in (1, 2))
        assert found.shapes()[fc1][0] == (1, 4, 6, 4)
        wanted = torch.arange(48.0).reshape(2, 6, 4)
        assert torch.equal(found.read(fc1, (0,)), torch.cat([wanted, wanted + 100]))
        wanted = torch.arange(24.0).reshape(2, 4, 3)
        assert torch.equal(found.read(fc2, (0,)), torch.cat([wanted, wanted - 100]))
        assert torch.equal(found.read(fc1, (0, 3), 2, 5), found.read(fc1)[0, 3, 2:5])


def test_whole_experts_beside_split_attention(tmp_path: Path) -> None:
    """Expert tensor parallel 1 on two ranks: each has half of the attention and two experts."""
    proj = f"{LAYERS}0.{PROJ}"
    ranks = {
        f"mp_rank_0{n}_00{n}": {proj: torch.full((2, 3), float(n)), **experts(n, "grouped")}
        for n in (0, 1)
    }
    sizes = {"expert_model_parallel_size": 2, "tensor_model_parallel_size": 2, "num_experts": 4}
    with Ranks(save(tmp_path / "a", ranks, **sizes, expert_tensor_parallel_size=1)) as found:
        assert found.read(LAYERS + PROJ).tolist() == [[[0, 0, 0, 1, 1, 1]] * 2]
        key = f"{LAYERS}mlp.experts.experts.linear_fc1.weight"
        assert torch.equal(
            found.read(key, (0, 2)),
            experts(1, "grouped")[f"{LAYERS}0.mlp.experts.linear_fc1.weight0"],
        )
    with pytest.raises(InputError, match="no mp_rank_00_001, mp_rank_01_000"):
        Ranks(save(tmp_path / "b", ranks, **sizes, expert_tensor_parallel_size=2))


def test_experts_that_are_split_otherwise_are_refused(tmp_path: Path) -> None:
    ranks = {f"mp_rank_0{t}": experts(0, "grouped") for t in range(4)}
    with pytest.raises(ConfigError, match="expert_tensor_parallel_size 1 or 4"):
        Ranks(save(tmp_path, ranks, num_experts=2, expert_tensor_parallel_size=2))


def test_repeated_key_and_value_heads_are_refused(tmp_path: Path) -> None:
    ranks = {f"mp_rank_0{t}": {f"{LAYERS}0.{QKV}": torch.ones(8, 4)} for t in (0, 1)}
    heads = {"num_attention_heads": 4, "kv_channels": 2, "group_query_attention": True}
    with pytest.raises(InputError, match="12 rows"):
        Ranks(save(tmp_path, ranks, **heads, num_query_groups=1))


@pytest.mark.parametrize("split", [True, False])
def test_down_projections_of_latent_attention_may_be_split(tmp_path: Path, split: bool) -> None:
    name = "self_attention.linear_q_down_proj.weight"
    whole = torch.arange(24.0).reshape(6, 4)
    parts = whole.chunk(2) if split else (whole, whole)
    ranks = {f"mp_rank_0{t}": {f"{LAYERS}0.{name}": parts[t].clone()} for t in (0, 1)}
    with Ranks(save(tmp_path, ranks, q_lora_rank=6, multi_latent_attention=True)) as found:
        assert torch.equal(found.read(LAYERS + name, (0,)), whole)


def test_layers_of_two_kinds_have_keys_of_their_own(tmp_path: Path) -> None:
    dense = {f"{LAYERS}0.{FC2}": torch.ones(4, 3)}
    sparse = {name.replace(".0.mlp", ".1.mlp"): t for name, t in experts(0, "grouped").items()}
    folder = save(tmp_path, {"mp_rank_00": dense | sparse}, num_experts=2, moe_layer_freq=[0, 1])
    with Ranks(folder) as found:
        assert found.shapes()[f"{LAYERS}0.{FC2}"][0] == (4, 3)
        assert found.shapes()[f"{LAYERS}1.mlp.experts.experts.linear_fc1.weight"][0] == (2, 6, 4)
