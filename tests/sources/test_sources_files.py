"""Files read by ranges, against the libraries that wrote them."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from megatron_bridge.errors import InputError
from megatron_bridge.sources import safetensors_file, torch_file
from megatron_bridge.sources.ranges import LocalFile

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8]


def some(dtype: torch.dtype) -> torch.Tensor:
    numbers = torch.arange(5 * 7 * 3).reshape(5, 7, 3)
    return (numbers % 251).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_safetensors_rows_are_the_librarys(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"a": some(dtype), "b.weight": some(dtype)[0], "scalar": some(dtype)[1, 2, 0]}
    save_file(tensors, tmp_path / "x.safetensors")
    found = safetensors_file.tensors(LocalFile(tmp_path / "x.safetensors"))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name].read(), tensor)
    assert torch.equal(found["a"].read(1, 4), tensors["a"][1:4])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_torch_rows_are_torchs(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = some(dtype)
    tree = {
        "model": {"w": whole, "view": whole[2:4]},
        "list": [1, 2.5, None, True, torch.Size([3])],
        "parameter": torch.nn.Parameter(whole.float()),
    }
    torch.save(tree, tmp_path / "x.pt")
    found = torch_file.load(LocalFile(tmp_path / "x.pt"))
    assert torch.equal(found["model"]["w"].read(), whole)
    assert torch.equal(found["model"]["view"].read(1, 2), whole[3:4])
    assert torch.equal(found["parameter"].read(), whole.float())
    assert found["list"] == [1, 2.5, None, True, (3,)]


def test_tensors_that_are_not_stored_row_by_row_are_torchs(tmp_path: Path) -> None:
    whole = torch.arange(120, dtype=torch.float32).reshape(4, 5, 6)
    views = {
        "transposed": whole[1].t(),
        "columns": whole[:, :, 2:4],
        "swapped": whole.transpose(0, 2),
        "repeated": whole[0, :1].expand(3, 6),
    }
    torch.save(views, tmp_path / "x.pt")
    found = torch_file.load(LocalFile(tmp_path / "x.pt"))
    for name, view in views.items():
        assert torch.equal(found[name].read(), view)
        assert torch.equal(found[name].read(1, 3), view[1:3])
        assert torch.equal(found[name].at((2,)).read(), view[2])


class Payload:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


def test_a_pickle_that_runs_code_is_refused_before_it_runs(tmp_path: Path) -> None:
    place = tmp_path / "ran"
    torch.save({"w": some(torch.float32), "x": Payload(place)}, tmp_path / "x.pt")
    with pytest.raises(InputError, match="made to run code"):
        torch_file.load(LocalFile(tmp_path / "x.pt"))
    assert not place.exists()


@pytest.mark.parametrize("cut", [0, 5, 100, -40, -1])
@pytest.mark.parametrize("kind", ["torch", "safetensors"])
def test_truncated_files_are_bad_input(tmp_path: Path, kind: str, cut: int) -> None:
    path = tmp_path / "x"
    if kind == "torch":
        torch.save({"w": some(torch.float32)}, path)
    else:
        save_file({"w": some(torch.float32)}, path)
    path.write_bytes(path.read_bytes()[:cut])
    read = torch_file.load if kind == "torch" else safetensors_file.tensors
    with pytest.raises(InputError):
        read(LocalFile(path))


@pytest.mark.parametrize("body", [b"", b"\x80\x02.", b"garbage"])
def test_damaged_pickles_are_bad_input(tmp_path: Path, body: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("archive/data.pkl", body)
    with pytest.raises(InputError):
        torch_file.load(LocalFile(tmp_path / "x.pt"))


def test_a_header_that_points_outside_the_file_is_bad_input(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 12)
    with pytest.raises(InputError, match="bytes 0 to 16"):
        safetensors_file.tensors(LocalFile(path))


def test_old_pickles_without_a_zip_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(pickle.dumps({"w": 1}))
    with pytest.raises(InputError, match=r"torch\.save"):
        torch_file.load(LocalFile(tmp_path / "x.pt"))
