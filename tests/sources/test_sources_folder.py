"""Model folders with weights of either kind give the same checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from safetensors.torch import load_file, save_file

from megatron_bridge.convert import import_hf
from megatron_bridge.errors import InputError, MappingError
from megatron_bridge.hf import Weights
from megatron_bridge.proof import TENSORS
from megatron_bridge.sources.source import Source

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, Tensors]:
    toys.hf_model("llama", tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    tensors = load_file(file)
    file.unlink()
    return tmp_path / "hf", tensors


def as_bin(folder: Path, tensors: Tensors) -> None:
    torch.save(tensors, folder / "pytorch_model.bin")
    torch.save({"lr": 1.0}, folder / "training_args.bin")  # no weights


def as_two_bins(folder: Path, tensors: Tensors) -> None:
    _in_two(folder, tensors, "pytorch_model-{}.bin", "pytorch_model.bin.index.json", torch.save)


def as_two_safetensors(folder: Path, tensors: Tensors) -> None:
    _in_two(folder, tensors, "model-{}.safetensors", "model.safetensors.index.json", save_file)


def _in_two(folder: Path, tensors: Tensors, file: str, index: str, write: Any) -> None:
    names = sorted(tensors)
    weight_map = {name: file.format(1 + (i % 2)) for i, name in enumerate(names)}
    for target in set(weight_map.values()):
        write({n: tensors[n] for n in names if weight_map[n] == target}, folder / target)
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize("write", [as_bin, as_two_bins, as_two_safetensors])
def test_every_kind_gives_the_same_tensors(model: Any, tmp_path: Path, write: Any) -> None:
    folder, tensors = model
    write(folder, tensors)
    with Weights(Source.of_folder(folder)) as weights:
        assert weights.names == sorted(tensors)
        assert all(torch.equal(weights.read(name), tensors[name]) for name in tensors)


def test_a_folder_is_no_gguf_file_whatever_lies_in_it(model: Any) -> None:
    folder, tensors = model
    as_two_safetensors(folder, tensors)
    (folder / ".gguf.json").write_text('{"x": ["/etc/passwd", 24, [4], 0]}')
    with Weights(Source.of_folder(folder)) as weights:
        assert weights.names == sorted(tensors)


def test_a_checkpoint_from_a_torch_file_equals_one_from_safetensors(
    model: Any, tmp_path: Path
) -> None:
    folder, tensors = model
    as_bin(folder, tensors)
    import_hf(folder, tmp_path / "a", proof=TENSORS)
    (folder / "pytorch_model.bin").unlink()
    save_file(tensors, folder / "model.safetensors")
    import_hf(folder, tmp_path / "b", proof=TENSORS)
    for path in (tmp_path / "a").glob("*.distcp"):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


class Payload:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


def test_a_malicious_torch_file_is_refused_before_it_runs(model: Any, tmp_path: Path) -> None:
    folder, tensors = model
    as_bin(folder, {**tensors, "x": Payload(tmp_path / "ran")})  # type: ignore[dict-item]  # on purpose
    with pytest.raises(InputError, match="made to run code"):
        import_hf(folder, tmp_path / "out", proof=TENSORS)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()


def test_tensors_of_other_widths_are_told_by_name(model: Any, tmp_path: Path) -> None:
    folder, tensors = model
    name = "model.layers.0.self_attn.k_proj.weight"
    save_file(tensors | {name: torch.ones(40, 50)}, folder / "model.safetensors")
    with pytest.raises(MappingError, match=r"k_proj.*\[40, 50\]"):
        import_hf(folder, tmp_path / "out", proof=TENSORS)


def test_one_name_in_two_files_is_refused(model: Any) -> None:
    folder, tensors = model
    save_file(tensors, folder / "a.safetensors")
    save_file({"lm_head.weight": tensors["lm_head.weight"]}, folder / "b.safetensors")
    with pytest.raises(InputError, match="in two weight files"):
        Weights(Source.of_folder(folder))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {"a": "gone.safetensors"}}'])
def test_a_bad_index_is_bad_input(model: Any, text: str) -> None:
    folder, tensors = model
    save_file(tensors, folder / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(InputError):
        Weights(Source.of_folder(folder))


def test_a_torch_file_that_is_no_table_of_tensors_is_refused(model: Any) -> None:
    folder, tensors = model
    torch.save({"model": tensors, "step": 3}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="other than tensors"):
        Weights(Source.of_folder(folder))
