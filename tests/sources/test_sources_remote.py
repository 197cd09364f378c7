"""A model at a URL: read once, by ranges, and the checkpoint held against what was read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatron_bridge import runner, torch_dist, transfer
from megatron_bridge.comparison import Notes
from megatron_bridge.convert import import_hf
from megatron_bridge.errors import ProofError
from megatron_bridge.proof import TENSORS
from megatron_bridge.side import Side
from megatron_bridge.verify import verify


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of some rows, groups of some blocks."""
    monkeypatch.setattr(transfer, "BLOCK_BYTES", 50_000)
    monkeypatch.setattr(transfer, "GROUP_BYTES", 400_000)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def weights_of(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.glob("*.distcp")}


@pytest.mark.parametrize(("dtype", "threads"), [(None, 1), ("bfloat16", 1), (None, 2)])
def test_an_import_fetches_the_model_once(
    served: Any, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    dtype: Any, threads: int,
) -> None:  # fmt: skip
    local = import_hf(served.folder, tmp_path / "local", dtype, proof=TENSORS)
    monkeypatch.setattr(runner, "threads", lambda *_: threads)
    found = import_hf(served.url, tmp_path / "out", dtype, proof=TENSORS)
    assert len(list((tmp_path / "out").glob("*.distcp"))) > 5
    assert weights_of(tmp_path / "out") == weights_of(tmp_path / "local")
    assert served.total <= 1.02 * size(served.folder)
    told = found.pop("source")
    assert told["bytes"] == size(served.folder)
    assert told["bytes_fetched"] == served.total
    if dtype:
        assert found["inverse"].pop("of") == "values as the checkpoint holds them"
        assert found["inverse"].pop("tensors") != local["inverse"].pop("tensors")
    assert found == local
    assert (tmp_path / "out" / "hf" / "LICENSE").read_text() == "do as you like"


def test_a_widened_import_has_the_digests_of_the_source(
    served: Any, shard: Any, tmp_path: Path
) -> None:
    tensors = load_file(served.folder / "model-0.safetensors")
    tensors |= load_file(served.folder / "model-1.safetensors")
    shard(served.folder, {name: tensor.bfloat16() for name, tensor in tensors.items()})
    local = import_hf(served.folder, tmp_path / "local", "float32", proof=TENSORS)
    found = import_hf(served.url, tmp_path / "out", "float32", proof=TENSORS)
    assert found["inverse"] == local["inverse"]
    assert found["dtype"]["cast"]


def test_values_that_overflow_in_a_cast_are_seen(served: Any, tmp_path: Path) -> None:
    tensors = load_file(served.folder / "model-0.safetensors")
    next(iter(tensors.values())).view(-1)[5] = 1e30
    save_file(tensors, served.folder / "model-0.safetensors")
    with pytest.raises(ProofError, match="overflows"):
        import_hf(served.url, tmp_path / "out", "float16", proof=TENSORS)


def test_verify_takes_a_url(served: Any, sharded_model: Path, tmp_path: Path) -> None:
    import_hf(sharded_model, tmp_path / "ckpt", proof=TENSORS)
    assert verify(served.url, tmp_path / "ckpt", TENSORS)["holds"]
    assert served.total <= 1.02 * size(sharded_model)
    flip(served.folder / "model-0.safetensors")
    found = verify(served.url, tmp_path / "ckpt", TENSORS)
    assert len(found["problems"]) == 1


def flip(path: Path, at: int = -5) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_byte_that_flips_in_the_checkpoint_is_seen(
    served: Any, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = torch_dist.write_index

    def flipped(folder: Path, placed: Any) -> None:
        placed = list(placed)
        write(folder, placed)
        block = max((b for b in placed if b.file == "__1_0.distcp"), key=lambda b: b.length)
        flip(folder / block.file, block.start + block.length // 2)

    monkeypatch.setattr(torch_dist, "write_index", flipped)
    with pytest.raises(ProofError, match="differs from"):
        import_hf(served.url, tmp_path / "out", proof=TENSORS)


def test_rows_in_the_wrong_place_are_seen(
    served: Any, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = Side.packed
    rolled = lambda one, piece: packed(one, piece).roll(1, 0)  # noqa: E731
    monkeypatch.setattr(Side, "packed", rolled)
    with pytest.raises(ProofError, match="differs from"):
        import_hf(served.url, tmp_path / "out", proof=TENSORS)


def test_rows_that_were_never_read_are_seen(
    served: Any, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Notes.take

    def forgetful(notes: Notes) -> Any:
        found = take(notes)
        for entry in found.values():
            del entry["runs"][1:]
        return found

    monkeypatch.setattr(Notes, "take", forgetful)
    with pytest.raises(ProofError, match="differs from"):
        import_hf(served.url, tmp_path / "out", proof=TENSORS)


def tie(folder: Path) -> dict[str, torch.Tensor]:
    """Let the model be tied, and its output layer a copy of its embedding."""
    tensors = load_file(folder / "model-0.safetensors") | load_file(folder / "model-1.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}


def test_a_tied_copy_is_read_once_too(served: Any, shard: Any, tmp_path: Path) -> None:
    shard(served.folder, tie(served.folder))
    found = import_hf(served.url, tmp_path / "out", proof=TENSORS)
    assert found["coverage"]["tied_copies_left_out"] == ["lm_head.weight"]
    assert served.total <= 1.02 * size(served.folder)
    served.sent.clear()
    assert verify(served.url, tmp_path / "out", TENSORS)["holds"]
    assert served.total <= 1.02 * size(served.folder)


def test_a_copy_that_is_none_is_seen(served: Any, shard: Any, tmp_path: Path) -> None:
    tensors = tie(served.folder)
    tensors["lm_head.weight"][-1, -1] += 1
    shard(served.folder, tensors)
    with pytest.raises(ProofError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
        import_hf(served.url, tmp_path / "out", proof=TENSORS)
