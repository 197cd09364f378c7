"""`.metadata` against PyTorch's own classes, and what a damaged or lying one is told by."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader, load
from torch.distributed.checkpoint import metadata as dcp

from megatron_bridge import index_file
from megatron_bridge.errors import InputError
from megatron_bridge.torch_dist import Chunk, Reader, write_file, write_index

WHOLE = torch.arange(5 * 4 * 3, dtype=torch.bfloat16).reshape(5, 4, 3)


def written(folder: Path) -> Path:
    """One tensor in three blocks, a scalar, and an entry that is no tensor."""
    cuts: list[tuple[int, int, int, int]] = [(0, 2, 0, 4), (2, 5, 0, 1), (2, 5, 1, 4)]
    chunks = [
        Chunk(
            "w", (a, c, 0), (b - a, d - c, 3), (5, 4, 3), torch.bfloat16,
            lambda a=a, b=b, c=c, d=d: WHOLE[a:b, c:d].contiguous(),
        )
        for a, b, c, d in cuts
    ]  # fmt: skip
    chunks.append(Chunk("step", (), (), (), torch.int64, lambda: torch.tensor(7)))
    folder.mkdir()
    write_index(folder, write_file(folder / "__0_0.distcp", chunks), empty=["x._extra_state"])
    return folder


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_torch_reads_what_is_written(tmp_path: Path) -> None:
    folder = written(tmp_path / "c")
    state = {"w": torch.zeros(5, 4, 3, dtype=torch.bfloat16), "step": torch.tensor(0)}
    load(state, storage_reader=FileSystemReader(folder), no_dist=True)
    assert torch.equal(state["w"], WHOLE)
    assert state["step"] == 7
    index: Any = pickle.loads((folder / ".metadata").read_bytes())
    assert isinstance(index, dcp.Metadata)
    assert isinstance(index.state_dict_metadata["x._extra_state"], dcp.BytesStorageMetadata)
    properties = index.state_dict_metadata["w"].properties
    assert properties == dcp.TensorProperties(dtype=torch.bfloat16)


def test_what_torch_pickles_is_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "c")
    ours = index_file.read(folder)
    index = pickle.loads((folder / ".metadata").read_bytes())
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    assert index_file.read(folder) == ours
    assert ours.others == {"x._extra_state"}
    with Reader(folder) as reader:
        assert torch.equal(reader.read("w"), WHOLE)
        assert torch.equal(reader.read("w", (3,), 1, 3), WHOLE[3, 1:3])


def moved(index: Any, number: int, **changes: tuple[int, ...]) -> None:
    chunk = index.state_dict_metadata["w"].chunks[number]
    for name, value in changes.items():
        setattr(chunk, name, torch.Size(value))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda index: moved(index, 1, offsets=(1, 0, 0)), "overlap"),
        (lambda index: moved(index, 2, offsets=(2, 2, 0)), "outside"),
        (lambda index: moved(index, 2, offsets=(2, 1)), "outside"),
        (lambda index: moved(index, 2, sizes=(3, -3, 3)), "a size of"),
        (lambda index: index.state_dict_metadata["w"].chunks.append(
            dcp.ChunkStorageMetadata(torch.Size((4, 3, 2)), torch.Size((1, 1, 1)))), "overlap"),
        (lambda index: index.state_dict_metadata["w"].chunks.pop(), "incomplete"),
        (lambda index: index.storage_data.clear(), "does not say where"),
        (lambda index: index.state_dict_metadata.update(w={}), "damaged"),
    ],
)  # fmt: skip
def test_an_index_that_lies_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "c")
    index = pickle.loads((folder / ".metadata").read_bytes())
    change(index)
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(InputError, match=words), Reader(folder) as reader:
        reader.read("w")


@pytest.mark.parametrize("content", [b"", b"x", pickle.dumps({}), pickle.dumps([1]), b"\x80\x02N."])
def test_a_damaged_index_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        index_file.read(tmp_path)


def test_a_pinwheel_of_blocks_does_not_overlap(tmp_path: Path) -> None:
    cuts = [(0, 1, 0, 2), (0, 2, 2, 3), (2, 3, 1, 3), (1, 3, 0, 1), (1, 2, 1, 2)]
    whole = torch.arange(9.0).reshape(3, 3)
    chunks = [
        Chunk(
            "w", (a, c), (b - a, d - c), (3, 3), torch.float32,
            lambda a=a, b=b, c=c, d=d: whole[a:b, c:d].contiguous(),
        )
        for a, b, c, d in cuts
    ]  # fmt: skip
    write_index(tmp_path, write_file(tmp_path / "__0_0.distcp", chunks))
    with Reader(tmp_path) as reader:
        assert torch.equal(reader.read("w"), whole)
