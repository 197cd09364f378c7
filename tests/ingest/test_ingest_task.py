"""ingest: a sealed copy, known by value and not by where it came from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tasks.core.errors import ConfigError, InputError
from tasks.core.store import Store
from tasks.ingest.task import IngestConfig, ingest

ENGLISH = Path(__file__).parents[1] / "data" / "wiki" / "english.xml"


def _build(store: Path, source: object, sha256: str | None = None):
    return ingest.build(Store(store), IngestConfig(source=str(source), sha256=sha256))


def test_a_dump_is_copied_byte_for_byte(tmp_path: Path) -> None:
    outcome = _build(tmp_path / "store", ENGLISH)
    assert [path.name for path in outcome.artifact.files] == ["english.xml"]
    assert outcome.artifact.files[0].read_bytes() == ENGLISH.read_bytes()
    assert outcome.artifact.label == "english"
    size = ENGLISH.stat().st_size
    assert outcome.artifact.metrics == {
        "sources": [str(ENGLISH)], "bytes": size, "compression": "none"
    }  # fmt: skip


def test_where_it_lies_does_not_matter_but_what_it_holds_does(tmp_path: Path) -> None:
    first = _build(tmp_path / "store", ENGLISH)
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(ENGLISH, tmp_path / "elsewhere")
    second = _build(tmp_path / "store", f"file://{copy}")
    assert (second.state, second.artifact.path) == ("Reused", first.artifact.path)
    Path(copy).write_bytes(ENGLISH.read_bytes().replace(b"stone", b"brick"))
    third = _build(tmp_path / "store", copy)
    assert (third.state, third.artifact.label) == ("Built", first.artifact.label)
    assert third.artifact.fingerprint != first.artifact.fingerprint


def test_what_is_no_dump_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.xml.bz2"
    with pytest.raises(InputError, match="does not exist"):
        _build(tmp_path / "store", path)
    path.touch()
    with pytest.raises(InputError, match="empty"):
        _build(tmp_path / "store", path)
    path.write_bytes(b"PK\x03\x04 a zip file")
    with pytest.raises(InputError, match="unknown kind"):
        _build(tmp_path / "store", path)


def test_a_dump_in_utf_16_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "x.xml"
    path.write_bytes(ENGLISH.read_text(encoding="utf-8").encode("utf-16"))
    assert _build(tmp_path / "store", path).state == "Built"


def test_a_digest_that_was_asked_for_is_held(tmp_path: Path) -> None:
    right = _build(tmp_path / "store", ENGLISH).artifact.record.files[0].sha256
    assert _build(tmp_path / "store", ENGLISH, right).state == "Reused"
    with pytest.raises(InputError, match="not the file that was asked for"):
        _build(tmp_path / "store", ENGLISH, "0" * 64)


def test_a_password_is_no_part_of_a_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as told:
        IngestConfig(source="https://me:hunter2@host/a.jsonl?sign=hunter2")
    assert "hunter2" not in str(told.value)
    assert "${NAME}" in str(told.value)
    config = IngestConfig(source="https://me:${PASSWORD}@host/a.jsonl?sign=${SIGN}")
    with pytest.raises(ConfigError, match="SIGN in the environment"):
        _ = config.sources
    monkeypatch.setenv("SIGN", "abc")
    assert config.sources == ("https://me:geheim@host/a.jsonl?sign=abc",)
    assert "geheim" not in config.model_dump_json()
    with pytest.raises(ConfigError) as told:
        IngestConfig(source="https://me:hunter2@[::1/a.jsonl")
    assert "hunter2" not in str(told.value)


def test_a_password_may_hold_what_divides_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "a/b@c:d?e")
    monkeypatch.setenv("SIGN", "x=1&y=/z")
    monkeypatch.setenv("HOST", "https://host/a")
    config = IngestConfig(source=("https://me:${PASSWORD}@host/a?${SIGN}", "${HOST}/b@c"))
    url, other = config.sources
    assert url == "https://me:a%2Fb%40c%3Ad%3Fe@host/a?x=1&y=/z"
    assert other == "https://host/a/b@c"
