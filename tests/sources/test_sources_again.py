"""A model elsewhere that changes, is refused or is lost while it is read: what is kept of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import pytest

from megatron_bridge import hf, transfer
from megatron_bridge.convert import import_hf
from megatron_bridge.errors import InputError, RetryableError
from megatron_bridge.proof import TENSORS
from megatron_bridge.sources import source
from megatron_bridge.sources.address import Address
from megatron_bridge.sources.remote import RemoteFile
from megatron_bridge.verify import verify

SHARD = "model-0.safetensors"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of some rows, groups of some blocks."""
    monkeypatch.setattr(transfer, "BLOCK_BYTES", 50_000)
    monkeypatch.setattr(transfer, "GROUP_BYTES", 400_000)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def interrupted(served: Any, out: Path, fault: str, url: str = "") -> str:
    """Import until a fault in the middle of it; return what is told."""

    def fail(done: int, total: int, **_: Any) -> None:
        if done > 12:
            setattr(served, fault, 1)

    with pytest.raises(RetryableError) as told:
        import_hf(url or served.url, out, proof=TENSORS, progress=fail)
    assert list((out.parent / f".{out.name}.unfinished" / "journal").glob("write-*.json"))
    setattr(served, fault, 0)
    return str(told.value)


@pytest.mark.parametrize("fault", ["hides", "ignores_ranges"])
def test_what_was_read_is_kept_when_a_file_is_not_given_any_more(
    served: Any, small: None, tmp_path: Path, fault: str
) -> None:
    assert "same command again" in interrupted(served, tmp_path / "out", fault)


@pytest.mark.parametrize("changes", [False, True])
def test_an_interrupted_import_goes_on_unless_the_model_changed(
    served: Any, small: None, tmp_path: Path, changes: bool
) -> None:
    interrupted(served, tmp_path / "out", "busy_every")
    before = served.total
    if changes:
        flip(served.folder / SHARD)
    import_hf(served.url, tmp_path / "out", proof=TENSORS)
    assert (served.total - before > 0.9 * size(served.folder)) == changes
    found = import_hf(served.folder, tmp_path / "local", proof=TENSORS)
    assert found["holds"]
    for path in (tmp_path / "local").glob("*.distcp"):
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()


def test_what_was_read_by_an_expired_signature_is_kept_for_a_fresh_one(
    served: Any, small: None, tmp_path: Path
) -> None:
    told = interrupted(served, tmp_path / "out", "refuses", f"{served.url}?Signature=s3cr3t")
    assert "with a fresh signature" in told
    before = served.total
    import_hf(f"{served.url}?Signature=another", tmp_path / "out", proof=TENSORS)
    assert served.total - before < 0.9 * size(served.folder)


@pytest.mark.parametrize("fault", ["hides", "ignores_ranges"])
def test_a_file_that_was_given_before_may_be_opened_again(served: Any, fault: str) -> None:
    with source.opened(served.url) as found, hf.Weights(found):
        setattr(served, fault, True)
        with pytest.raises(RetryableError, match="same command again"):
            hf.Weights(found)


def test_a_file_that_was_given_before_may_be_opened_with_a_fresh_signature(served: Any) -> None:
    served.refuses = True
    with pytest.raises(InputError, match="have not expired"):
        RemoteFile(Address(f"{served.url}/{SHARD}"))
    served.refuses = False
    with source.opened(served.url) as found, hf.Weights(found):
        served.refuses = True
        with pytest.raises(RetryableError, match="fresh signature"):
            hf.Weights(found)


def test_a_right_that_is_withdrawn_may_be_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe("/withdrawn/x", b"0123456789")
    file = RemoteFile(Address("memory://withdrawn/x"))

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(type(fs), "cat_file", refuse)
    with pytest.raises(RetryableError, match="not given any more"):
        file.read(0, 4)


def test_without_etag_and_date_nothing_is_taken_up(
    served: Any, small: None, tmp_path: Path
) -> None:
    served.tells_no_state = True
    interrupted(served, tmp_path / "out", "busy_every")
    flip(served.folder / SHARD)
    before = served.total
    assert import_hf(served.url, tmp_path / "out", proof=TENSORS)["holds"]
    assert served.total - before > 0.98 * size(served.folder)


def test_without_etag_and_date_another_size_is_seen(served: Any) -> None:
    served.tells_no_state = True
    file = RemoteFile(Address(f"{served.url}/{SHARD}"))
    assert len(file.read(100, 50)) == 50
    os.truncate(served.folder / SHARD, file.size + 1)
    with pytest.raises(InputError, match="changed while"):
        file.read(100, 50)


def test_a_revision_is_another_model_and_a_signature_is_not(served: Any) -> None:
    def state(query: str) -> Any:
        with source.opened(f"{served.url}?{query}") as found, hf.Weights(found) as weights:
            return weights.state()

    assert state("sig=1&revision=a") == state("sig=2&revision=a") != state("sig=1&revision=b")
    assert state("versionId=1") != state("VersionID=2")
    assert state("sig=1") == state("sig=2")


def test_a_model_that_changes_while_it_is_read_is_refused(served: Any, tmp_path: Path) -> None:
    def change(done: int, *_: Any, **__: Any) -> None:
        os.utime(served.folder / SHARD)

    with pytest.raises(InputError, match="changed while"):
        import_hf(served.url, tmp_path / "out", proof=TENSORS, progress=change)
    assert not (tmp_path / "out").exists()


def test_a_model_that_changes_while_it_is_verified_is_refused(
    served: Any, sharded_model: Path, tmp_path: Path
) -> None:
    import_hf(sharded_model, tmp_path / "out", proof=TENSORS)

    def change(done: int, total: int, **_: Any) -> None:
        if done == total:
            os.utime(served.folder / SHARD)

    for place in (served.url, served.folder):
        with pytest.raises(InputError, match="changed while"):
            verify(place, tmp_path / "out", TENSORS, progress=change)
