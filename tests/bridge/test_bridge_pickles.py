"""A pickle that runs code, in each place where one can lie: refused, and its payload never runs."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from torch.distributed.checkpoint.filesystem import _StorageInfo

from megatron_bridge import __main__ as command
from megatron_bridge import checkpoint
from megatron_bridge.convert import import_hf
from megatron_bridge.proof import TENSORS

RUNS = Path(__file__).parents[1] / "data" / "megatron_lm"


class Payload:
    """Runs code when a bare pickle loads it."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self.place,)


@pytest.fixture
def payload(tmp_path: Path) -> Payload:
    victim = Payload(tmp_path / "ran")
    pickle.loads(pickle.dumps(victim))
    assert victim.place.exists()  # the control: a bare load runs it
    victim.place.unlink()
    return victim


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("pickles")
    toys.hf_model("llama", folder / "hf")
    import_hf(folder / "hf", folder / "ckpt", proof=TENSORS)
    (folder / "ids.json").write_text("[[1, 2, 3]]")
    return folder


def own_index(folder: Path) -> Any:
    """The index by PyTorch's classes; no stranger has written it."""
    return pickle.loads((folder / ".metadata").read_bytes())


def in_a_weight_file(folder: Path, payload: Payload) -> None:
    for path in folder.glob("*.safetensors"):
        path.unlink()
    torch.save({"lm_head.weight": payload}, folder / "pytorch_model.bin")


def in_the_index(folder: Path, payload: Payload) -> None:
    index = own_index(folder)
    index.planner_data = payload
    (folder / ".metadata").write_bytes(pickle.dumps(index))


def in_the_common_state(folder: Path, payload: Payload) -> None:
    torch.save({"args": payload}, folder / "common.pt")


def in_a_block(folder: Path, payload: Payload) -> None:
    """Put the payload behind a file's end, and let the index name it for some blocks."""
    path = next(iter(sorted(folder.glob("*.distcp"))))
    start = path.stat().st_size
    with path.open("ab") as file:
        torch.save(payload, file)
    index = own_index(folder)
    length = path.stat().st_size - start
    for place in list(index.storage_data):
        if "embedding" in place.fqn:
            index.storage_data[place] = _StorageInfo(path.name, start, length)
    (folder / ".metadata").write_bytes(pickle.dumps(index))


def in_a_rank(folder: Path, payload: Payload) -> None:
    path = next(iter(sorted(folder.rglob("model_optim_rng.pt"))))
    torch.save({"args": payload, "iteration": 3, "model": {}}, path)


def in_the_optimizer(folder: Path, payload: Payload) -> None:
    path = next(iter(sorted(folder.rglob("distrib_optim.pt"))))
    torch.save({0: payload}, path)


def refused(arguments: list[Any], payload: Payload, capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(list(map(str, arguments))) in (1, 2)
    told = capfd.readouterr().err
    assert "made to run code" in told
    assert "Traceback" not in told
    assert not payload.place.exists()


def test_in_pytorch_model_bin(
    toy: Path, payload: Payload, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(toy / "hf", tmp_path / "hf"))
    in_a_weight_file(folder, payload)
    for arguments in (["import", folder, tmp_path / "out"], ["inspect", folder],
                      ["verify", folder, toy / "ckpt"]):  # fmt: skip
        refused(arguments, payload, capfd)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("lie", [in_the_index, in_the_common_state, in_a_block])
def test_in_a_checkpoint(
    toy: Path, payload: Payload, lie: Callable[[Path, Payload], None], tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = Path(shutil.copytree(toy / "ckpt", tmp_path / "ckpt"))
    lie(folder, payload)
    info = checkpoint.read_info(toy / "ckpt")
    kept = info.model_dump(exclude={"files", "format"})
    checkpoint.commit(folder, **kept)  # the liar's own mark
    ids, out = toy / "ids.json", tmp_path / "out"
    refused(["logits", folder, "--tokens", ids, "--out", out], payload, capfd)
    if lie is not in_the_common_state:  # nobody else opens it
        refused(["export", folder, out], payload, capfd)
        refused(["verify", toy / "hf", folder], payload, capfd)
    assert not out.exists()


@pytest.mark.parametrize(
    ("run", "lie", "commands"),
    [
        ("dense-torch_dist", in_the_index, ["export", "inspect"]),
        ("dense-torch_dist", in_the_common_state, ["export", "inspect"]),
        ("dense-torch_dist", in_a_block, ["export"]),
        ("dense-torch", in_a_rank, ["export", "inspect", "reshard"]),
        ("sharded-torch", in_the_optimizer, ["reshard"]),
    ],
)
def test_in_what_megatron_lm_wrote(
    run: str, lie: Callable[[Path, Payload], None], commands: list[str], payload: Payload,
    tmp_path: Path, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = Path(shutil.copytree(RUNS / run, tmp_path / run))
    lie(next(folder.glob("iter_*")), payload)
    for name in commands:
        arguments = [name, folder] + ([tmp_path / "out"] if name != "inspect" else [])
        arguments += ["--vocab-size", 101] if name == "export" else []
        refused(arguments, payload, capfd)
        assert not (tmp_path / "out").exists()
