"""Which checkpoint of a folder is meant, in which format; mistakes are sentences."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from megatron_bridge import inspection
from megatron_bridge.convert import export_hf
from megatron_bridge.errors import InputError
from megatron_bridge.megatron_lm import folder
from megatron_bridge.megatron_lm.folder import LATEST, open_run

DATA = Path(__file__).parents[1] / "data" / "megatron_lm"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "dense-torch_dist", tmp_path / "saved"))


@pytest.mark.parametrize("run", ["dense-torch_dist", "dense-torch"])
def test_the_root_and_the_checkpoint_itself_are_taken(run: str) -> None:
    for place in (DATA / run, DATA / run / "iter_0000003"):
        found = open_run(place)
        assert found.folder == (DATA / run / "iter_0000003").resolve()
        assert found.format == run.removeprefix("dense-")
        assert found.iteration == 3
        assert found.arguments["num_layers"] == 2
        assert found.arguments["hidden_size"] == 24


def test_the_old_common_file_is_read(saved: Path) -> None:
    """Megatron-Core up to 0.18 keeps what ranks have in common in `common.pt`."""
    import argparse

    import torch

    place = saved / "iter_0000003"
    arguments = open_run(place).arguments
    plain = {k: v for k, v in arguments.items() if isinstance(v, int | float | str | None)}
    common = argparse.Namespace(**{**plain, "rotary_interleaved": True})
    torch.save({"args": common, "iteration": 7}, place / "common.pt")
    found = open_run(saved)
    assert found.iteration == 7
    assert found.arguments["rotary_interleaved"] is True


def test_no_latest_file(saved: Path) -> None:
    (saved / LATEST).unlink()
    with pytest.raises(InputError, match=rf"no {LATEST}.*iter_0000003"):
        open_run(saved)
    shutil.copytree(saved / "iter_0000003", saved / "iter_0000006")
    with pytest.raises(InputError, match=r"2 checkpoints: iter_0000003, iter_0000006") as caught:
        open_run(saved)
    assert f"name the one that you mean, such as {saved / 'iter_0000006'}" in str(caught.value)


def test_two_checkpoints_and_the_latest_is_taken(saved: Path) -> None:
    shutil.copytree(saved / "iter_0000003", saved / "iter_0000006")
    assert open_run(saved).folder.name == "iter_0000003"
    (saved / LATEST).write_text("6")
    assert open_run(saved).folder.name == "iter_0000006"


@pytest.mark.parametrize("word", ["9", "release", "../saved/iter_0000003", "", "\x00\xff"])
def test_a_latest_that_is_not_there(saved: Path, word: str) -> None:
    (saved / LATEST).write_text(word, encoding="latin-1")
    with pytest.raises(InputError, match=r"names a checkpoint that is not there.*iter_0000003"):
        open_run(saved)


def test_formats_that_are_not_read(saved: Path) -> None:
    place = saved / "iter_0000003"
    (place / "metadata.json").write_text(json.dumps({"sharded_backend": "zarr"}))
    with pytest.raises(InputError, match="in the format zarr are not read"):
        open_run(saved)
    (place / "metadata.json").unlink()
    with pytest.raises(InputError, match=r"in the format torch_dcp.*--ckpt-format torch_dist"):
        open_run(saved)
    with (place / ".metadata").open("ab") as file:
        file.write(b"model.module.decoder")
    with pytest.raises(InputError, match="in the format fsdp_dtensor"):
        open_run(saved)
    (place / ".metadata").unlink()
    (place / "decoder.weight").mkdir()
    (place / "decoder.weight" / ".zarray").write_text("{}")
    with pytest.raises(InputError, match="in the format zarr"):
        open_run(saved)


def test_an_unknown_backend_is_named(saved: Path) -> None:
    (saved / "iter_0000003" / "metadata.json").write_text(json.dumps({"sharded_backend": "new"}))
    with pytest.raises(InputError, match="in the format new are not read"):
        open_run(saved)


def test_a_rank_that_is_missing_is_named(tmp_path: Path) -> None:
    shutil.copytree(DATA / "dense-torch", tmp_path / "saved")
    shutil.rmtree(tmp_path / "saved" / "iter_0000003" / "mp_rank_01_001")
    with pytest.raises(InputError, match="mp_rank_01_001"):
        open_run(tmp_path / "saved")


def test_other_folders(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "notes.txt").write_text("x")
    for place in (tmp_path / "given", tmp_path / "nothing"):
        assert not folder.is_run(place)
        with pytest.raises(InputError, match="no checkpoint of Megatron-LM"):
            open_run(place)
        with pytest.raises(InputError, match="holds no model"):
            inspection.inspect(place)
        with pytest.raises(InputError, match="not a finished checkpoint"):
            export_hf(place, tmp_path / "out")
