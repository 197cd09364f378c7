"""What enters a fingerprint, what stays out, and what is refused."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any

import pytest
from core_stages import RawConfig, UpperConfig, raw, upper
from pydantic import BaseModel

from tasks.core import fingerprint
from tasks.core.errors import ConfigError, InputError
from tasks.core.fingerprint import DigestCache, Runtime, canonical_json, differences, identity
from tasks.core.store import Store


class Inner(BaseModel):
    kept: int = 1
    dropped: Annotated[int, Runtime] = 1


class Outer(BaseModel):
    inner: Inner = Inner()
    items: tuple[Inner, ...] = (Inner(),)
    rate: float = 1e-4
    anything: Any = None


def test_canonical_json_is_the_json_we_would_write_by_hand() -> None:
    value = {"b": [1, 2.5, None, True], "a": {"é": "x"}}
    assert canonical_json(value) == '{"a":{"é":"x"},"b":[1,2.5,null,true]}'


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {1, 2}, datetime.date(2026, 1, 1), {1: 2}, object(), b"x"]
)
def test_values_without_stable_form_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"anything\.deep"):
        identity(Outer(anything={"deep": value}))


def test_runtime_fields_stay_out_at_any_depth() -> None:
    assert identity(Outer()) == {
        "inner": {"kept": 1}, "items": [{"kept": 1}], "rate": 1e-4, "anything": None,
    }  # fmt: skip


def test_fingerprint_is_the_documented_hash(tmp_path: Path) -> None:
    digests = DigestCache(tmp_path / "digests.json")
    hashed = '{"identity":{"text":"abc"},"inputs":[],"stage":"raw","version":1}'
    wanted = hashlib.sha256(hashed.encode()).hexdigest()[:12]
    assert raw.fingerprint(RawConfig(), [], digests) == wanted
    assert raw.fingerprint(RawConfig(workers=8), [], digests) == wanted
    assert raw.fingerprint(RawConfig(text="abd"), [], digests) != wanted


def test_inputs_and_version_enter(tmp_path: Path) -> None:
    digests = DigestCache(tmp_path / "digests.json")
    first, second = (upper.fingerprint(UpperConfig(), [name], digests) for name in "ab")
    assert first != second
    store = Store(tmp_path)
    corpus = raw.build(store, RawConfig()).artifact
    address = upper.address(UpperConfig(), {"corpus": corpus}, digests)
    assert address.identity["inputs"] == [corpus.fingerprint]
    assert address.fingerprint == upper.fingerprint(UpperConfig(), [corpus.fingerprint], digests)


def test_differences_in_words() -> None:
    old = {"train": {"steps": 12, "rate": 1.0}, "files": [1, 2], "gone": True}
    new = {"train": {"steps": 7, "rate": 1}, "files": [1, 3], "new": "x"}
    assert differences(old, new) == [
        "files[1]: 2 -> 3",
        "gone: true -> (absent)",
        'new: (absent) -> "x"',
        "train.rate: 1.0 -> 1",
        "train.steps: 12 -> 7",
    ]
    assert differences(old, old) == []


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(os.urandom(3_000_000))
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


def test_digest_is_read_once(
    tmp_path: Path, old_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = hashlib.sha256(old_file.read_bytes()).hexdigest()
    assert DigestCache(tmp_path / "digests.json").sha256(old_file) == wanted
    monkeypatch.setattr(fingerprint, "sha256_file", lambda path: pytest.fail("hashed again"))
    assert DigestCache(tmp_path / "digests.json").sha256(old_file) == wanted


@pytest.mark.parametrize("how", ["size", "mtime", "inode"])
def test_digest_follows_a_change(tmp_path: Path, old_file: Path, how: str) -> None:
    cache = DigestCache(tmp_path / "digests.json")
    first = cache.sha256(old_file)
    data = bytearray(old_file.read_bytes())
    data[0] ^= 1
    if how == "inode":
        old_file.rename(tmp_path / "aside")
    old_file.write_bytes(data + b"x" * (how == "size"))
    stamp = 1_000_000_001 if how == "mtime" else 1_000_000_000
    os.utime(old_file, (stamp, stamp))
    assert cache.sha256(old_file) == hashlib.sha256(old_file.read_bytes()).hexdigest() != first


def test_digest_of_a_fresh_file_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "fresh").write_text("x")
    DigestCache(tmp_path / "digests.json").sha256(tmp_path / "fresh")
    assert not (tmp_path / "digests.json").exists()


def test_many_digests_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / f"{number}" for number in range(9)]
    for number, file in enumerate(files):
        file.write_text(f"{number}")
        os.utime(file, (1_000_000_000, 1_000_000_000))
    written: list[object] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *names: written.append(names) or replace(*names))
    cache = DigestCache(tmp_path / "digests.json")
    found = cache.sha256_of(files)
    assert found == [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert len(written) == 1
    monkeypatch.setattr(fingerprint, "sha256_file", lambda path: pytest.fail("hashed again"))
    assert cache.sha256_of(reversed(files)) == found[::-1]


def test_damaged_cache_is_made_anew(tmp_path: Path, old_file: Path) -> None:
    (tmp_path / "digests.json").write_text("{half")
    DigestCache(tmp_path / "digests.json").sha256(old_file)
    assert str(old_file) in json.loads((tmp_path / "digests.json").read_text())


def test_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        DigestCache(tmp_path / "digests.json").sha256(tmp_path / "nowhere")
