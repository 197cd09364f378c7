"""A model's tokenizer files against those that a dataset was made with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.core.errors import ProofError
from tasks.core.tokenizer_files import digests, require_same, sha256_of


def test_what_decides_on_ids_is_compared_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer.model").write_bytes(b"pieces")
    (tmp_path / "config.json").write_text("{}")
    recorded = digests(tmp_path)
    assert sorted(recorded) == ["tokenizer.json", "tokenizer.model"]
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "another"}')
    require_same(recorded, tmp_path, tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "merges.txt"])
def test_a_file_that_changed_or_came_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    recorded = digests(tmp_path)
    (tmp_path / name).write_text("other")
    with pytest.raises(ProofError, match=rf"not the one.*{name}"):
        require_same(recorded, tmp_path, Path("tokens"))


def test_a_file_that_went_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    recorded = digests(tmp_path)
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(ProofError, match=r"vocab\.json absent"):
        require_same(recorded, tmp_path, Path("tokens"))


def test_the_digest_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    before = sha256_of(tmp_path)
    (tmp_path / "a").write_text("2")
    assert sha256_of(tmp_path) != before
    assert len(sha256_of(tmp_path / "a")) == 64
