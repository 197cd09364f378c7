"""`torch` to `torch_dist` with the optimizer: Megatron's own entries, and its own resumed run."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from mlm_folders import DATA, TORCH, iteration, load

from megatron_bridge import index_file, torch_dist
from megatron_bridge.errors import ConfigError, InputError
from megatron_bridge.megatron_lm import buffers
from megatron_bridge.megatron_lm import reshard as module
from megatron_bridge.megatron_lm.ranks import Ranks
from megatron_bridge.megatron_lm.reshard import reshard
from megatron_bridge.torch_dist import Reader, is_model_key

MEGATRON_LM = importlib.util.find_spec("megatron.training") is not None


def written(name: str, out: Path) -> Path:
    reshard(DATA / f"{name}-torch", out)
    return out / "iter_0000003"


def test_every_tensor_is_what_megatron_lm_saved_of_the_same_run(tmp_path: Path) -> None:
    """Weights, both moments, and the entries for extra states."""
    place = written("dense", tmp_path / "out")
    with Reader(place) as ours, Reader(iteration("dense-torch_dist")) as theirs:
        assert ours.shapes() == theirs.shapes()
        assert sum(not is_model_key(key) for key in ours.shapes()) == 18
        for key in ours.shapes():
            assert torch.equal(ours.read(key), theirs.read(key)), key
    found = [index_file.read(p) for p in (place, iteration("dense-torch_dist"))]
    entries = [one.tensors.keys() | one.others for one in found]
    common = ("common_state", "rng_state", "rerun_state_machine_state")
    assert entries[0] == {key for key in entries[1] if not key.startswith(common)}


def test_common_values_are_what_megatron_lm_saved_of_the_same_run(tmp_path: Path) -> None:
    ours = torch.load(written("dense", tmp_path / "out") / "common.pt", weights_only=False)
    with Reader(iteration("dense-torch_dist")) as reader:
        theirs = reader.entry("common_state/shard_0_1")[0]
        steps = theirs["optimizer"]["state"]["common_step"].read()
    assert ours["optimizer"]["param_groups"] == theirs["optimizer"]["param_groups"]
    assert ours["optimizer"]["state"]["common_step"] == steps == 3
    for name in ("iteration", "checkpoint_version", "opt_param_scheduler", "content_metadata"):
        assert ours[name] == theirs[name]
    told = {"ckpt_format", "no_save_rng", "no_save_optim", "use_dist_ckpt", "save"}
    for name, value in vars(ours["args"]).items():
        assert name in told or value == theirs["args"][name], name
    assert (tmp_path / "out" / "latest_checkpointed_iteration.txt").read_text() == "3"


@pytest.mark.parametrize("name", TORCH)
def test_weights_are_those_that_were_read(tmp_path: Path, name: str) -> None:
    place = written(name, tmp_path / "out")
    with Reader(place) as reader, Ranks(iteration(f"{name}-torch")) as ranks:
        for key in ranks.shapes():
            assert torch.equal(reader.read(key), ranks.read(key))


def test_moments_follow_their_parameters_through_groups_and_chunks(tmp_path: Path) -> None:
    first, second = (load("chunks-torch", f"mp_rank_00_00{p}") for p in (0, 1))
    # The first group has the matrices in the model's order: the embedding, then four a chunk.
    fc2 = [s["optimizer"]["state"][n]["exp_avg"] for s, n in ((first, 4), (second, 3), (first, 8))]
    with Reader(written("chunks", tmp_path / "out")) as reader:
        key = "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight"
        for layer, moment in enumerate(fc2):
            assert torch.equal(reader.read(key, (layer,)), moment)


def test_a_distributed_optimizer_gets_the_shapes_of_the_parameters(tmp_path: Path) -> None:
    place = written("sharded", tmp_path / "out")
    (flat,) = load("sharded-torch", "mp_rank_00", "distrib_optim.pt")[0].values()
    with Reader(place) as reader:
        # The last parameter, the output layer, is the first in the buffer.
        for kind in ("param", "exp_avg", "exp_avg_sq"):
            found = reader.read(f"optimizer.state.{kind}.output_layer.weight")
            assert torch.equal(found.flatten(), flat[kind][: found.numel()])
    common = torch.load(place / "common.pt", weights_only=False)
    assert common["content_metadata"]["distrib_optim_sharding_type"] == "fully_reshardable"
    assert {group["step"] for group in common["optimizer"]["optimizer"]["param_groups"]} == {3.0}


def test_buffers_are_laid_out_as_megatron_lays_them_out() -> None:
    assert buffers.layout([70, 10, 3], [False] * 3, None) == ([128, 64, 0], 198)
    # A bucket of its own ends the one before at the next multiple of 64, as Megatron counts it.
    assert buffers.layout([70, 10, 3], [True, False, False], None) == ([128, 64, 0], 198)
    assert buffers.layout([70, 10, 3], [False, False, True], None) == ([67, 3, 0], 137)
    # Buckets are closed when they are full; what is between them is not in the file.
    assert buffers.layout([70, 10, 3], [False] * 3, 60) == ([74, 64, 0], 144)


@pytest.mark.skipif(not MEGATRON_LM, reason="needs megatron.training (megatron-core 0.19)")
def test_buffers_of_any_sizes_are_laid_out_as_megatron_lays_them_out() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Transformer Engine and Apex are not installed
        from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    config, draw = types.SimpleNamespace(pad_buckets_for_high_nccl_busbw=False), random.Random(1)
    for _ in range(300):
        sizes = draw.choices([1, 7, 24, 63, 64, 65, 128, 500, 1000], k=draw.randint(1, 12))
        alone = [n == draw.choice([0, len(sizes) - 1, -1]) for n in range(len(sizes))]
        limit = draw.choice([None, 100, 700])
        parameters = [torch.nn.Parameter(torch.empty(size)) for size in sizes]
        for parameter, own in zip(parameters, alone, strict=True):
            parameter.shared_embedding = own
        theirs = DistributedOptimizer._compute_per_buffer_param_layout(
            parameters, limit, draw.choice([1, 2, 3, 8]), config
        )
        lengths, wanted = theirs.per_bucket_numel_unpadded, []
        for parameter in parameters:
            start, _, bucket = theirs.param_index_map[parameter]
            start -= theirs.bucket_indices[bucket][0]
            wanted.append(sum(lengths[:bucket]) + start)
        assert buffers.layout(sizes, alone, limit) == (wanted, sum(lengths))


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    found = reshard(DATA / "dense-torch", tmp_path / "out")
    assert (found["tensors"], found["optimizer_tensors"]) == (9, 18)
    assert found["left_out"]["random states of ranks"] == 4
    assert found["left_out"]["extra states of Transformer Engine"] == 18


def test_two_conversions_are_the_same_files(tmp_path: Path) -> None:
    for out in ("one", "two"):
        reshard(DATA / "half-torch", tmp_path / out)
    files = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.*"))
    assert len(files) == 6
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_killed_conversion_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUP_BYTES", 30_000)
    reshard(DATA / "dense-torch", tmp_path / "one")
    write, calls = torch_dist.write_file, []

    def killed(path: Path, chunks: Any) -> Any:
        if path.name == "__2_0.distcp":
            raise KeyboardInterrupt
        return write(path, chunks)

    def counted(path: Path, chunks: Any) -> Any:
        calls.append(path.name)
        return write(path, chunks)

    monkeypatch.setattr(torch_dist, "write_file", killed)
    with pytest.raises(KeyboardInterrupt):
        reshard(DATA / "dense-torch", tmp_path / "two")
    assert not (tmp_path / "two").exists()
    monkeypatch.setattr(torch_dist, "write_file", counted)
    reshard(DATA / "dense-torch", tmp_path / "two")
    assert "__0_0.distcp" not in calls
    assert "__2_0.distcp" in calls
    one, two = (sorted(p for p in (tmp_path / n).rglob("*.*")) for n in ("one", "two"))
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in two]


def test_the_new_format_and_a_full_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="torch_dist already"):
        reshard(DATA / "dense-torch_dist", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="not empty"):
        reshard(DATA / "dense-torch", tmp_path / "full")
    with pytest.raises(ConfigError, match="lies in what is read"):
        reshard(DATA / "dense-torch", DATA / "dense-torch" / "new")


def test_a_lost_optimizer_file_and_a_payload_in_one_are_refused(tmp_path: Path) -> None:
    shutil.copytree(DATA / "sharded-torch", tmp_path / "run")
    file = tmp_path / "run" / "iter_0000003" / "mp_rank_00" / "distrib_optim.pt"

    class Payload:
        def __reduce__(self) -> Any:
            return exec, ("raise SystemExit",)

    torch.save({0: Payload()}, file)
    with pytest.raises(InputError, match="made to run code"):
        reshard(tmp_path / "run", tmp_path / "out")
    file.unlink()
    with pytest.raises(InputError, match=r"distrib_optim\.pt"):
        reshard(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def make() -> Any:
    spec = importlib.util.spec_from_file_location("make", DATA / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def resumed(ranks: int, options: list[str], load: Path, work: Path, **more: str) -> list[Any]:
    """Two steps of Megatron-LM from a checkpoint: losses and gradient norms."""
    report = work / "report.json"
    options = [*options, "--load", str(load), "--no-load-rng"]
    make().run(ranks, options, work, STEPS="2", REPORT=str(report), **more)
    return [number for step in json.loads(report.read_text()) for number in step.values()]


# The loss of Megatron-LM counts the padding of the vocabulary, which is kept the same.
OTHER = {
    "dense": (1, "--num-layers 2 --make-vocab-size-divisible-by 16"),
    "chunks": (1, "--num-layers 4"),
    # At another layout bfloat16 products are rounded otherwise.
    "half": (
        4,
        "--num-layers 3 --decoder-first-pipeline-num-layers 1 --bf16 "
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2",
    ),
    "sharded": (
        2,
        "--num-layers 2 --use-distributed-optimizer --tensor-model-parallel-size 2 "
        "--make-vocab-size-divisible-by 4",
    ),
    "experts": (
        2,
        "--num-layers 2 --num-experts 4 --moe-ffn-hidden-size 20 --moe-router-topk 2 "
        "--moe-router-load-balancing-type none --moe-token-dispatcher-type allgather "
        "--expert-model-parallel-size 2 --moe-router-dtype fp32",
    ),
}


@pytest.mark.slow
@pytest.mark.skipif(not MEGATRON_LM, reason="needs megatron.training (megatron-core 0.19)")
@pytest.mark.parametrize("name", list(OTHER))
def test_megatron_lm_goes_on_as_from_the_original(tmp_path: Path, name: str) -> None:
    """At another layout where Megatron-LM can: the next losses and gradient norms."""
    reshard(DATA / f"{name}-torch", tmp_path / "new")
    ranks, options = make().CASES[f"{name}-torch"]
    wanted = resumed(ranks, options, DATA / f"{name}-torch", tmp_path)
    ranks, words = OTHER[name]
    options = [*words.split(), *make().UNTIED, *make().TORCH_DIST]
    assert resumed(ranks, options, tmp_path / "new", tmp_path) == pytest.approx(wanted, rel=1e-5)
    if name == "dense":
        forgotten = resumed(ranks, options, tmp_path / "new", tmp_path, ZERO_MOMENTS="1")
        assert forgotten[:2] == pytest.approx(wanted[:2], rel=1e-5)
        assert abs(forgotten[2] - wanted[2]) > 1e-3
