"""What `AutoTokenizer` made of a folder is kept, and used for the same files only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from encoder_cases import train

from tasks.core.errors import InputError
from tasks.tokens import auto_tokenizer


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    train("gpt2").save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def resolve(folder: Path, out: Path) -> tuple[dict[str, Any], bytes]:
    out.mkdir()
    facts = auto_tokenizer.resolve(folder, out)
    return facts, (out / "tokenizer.json").read_bytes()


def test_the_second_call_starts_no_process(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve(model, tmp_path / "1")
    monkeypatch.setattr(auto_tokenizer.process, "tied", None)
    (model / "model.safetensors").write_bytes(b"other weights")
    assert resolve(model, tmp_path / "2") == first
    (model / "tokenizer_config.json").write_text("{}")
    with pytest.raises(TypeError):
        resolve(model, tmp_path / "3")


def test_what_is_kept_changes_with_files_and_versions_and_is_made_anew_when_damaged(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, data = resolve(model, tmp_path / "1")
    (kept,) = (tmp_path / "cache/megaline/tokenizers").iterdir()
    (kept / "tokenizer.json").write_bytes(data[:-10])
    assert resolve(model, tmp_path / "2") == (facts, data)
    assert (kept / "tokenizer.json").read_bytes() == data
    with monkeypatch.context() as patch:
        patch.setattr(auto_tokenizer, "version", lambda _: "another")
        assert auto_tokenizer._kept(model) != kept
    text = (model / "tokenizer_config.json").read_text()
    (model / "tokenizer_config.json").write_text(text.replace("im_end", "im_start"))
    assert resolve(model, tmp_path / "3")[0] == {**facts, "eos_token": "<|im_start|>"}


def test_without_a_place_for_it_nothing_is_kept(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert resolve(model, tmp_path / "1") == resolve(model, tmp_path / "2")


def test_a_refusal_is_not_kept(model: Path, tmp_path: Path) -> None:
    (model / "tokenizer.json").write_text("{}")
    for _ in range(2):
        with pytest.raises(InputError):
            auto_tokenizer.resolve(model, tmp_path)
    assert not (tmp_path / "cache").exists()


def test_the_folder_one_is_in_is_not_imported_from(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    for name in ("tokenizers", "transformers"):
        (trap / f"{name}.py").write_text("raise SystemExit('run')\n")
    monkeypatch.chdir(trap)
    assert resolve(model, tmp_path / "1")[0]["eos_token"] == "<|im_end|>"
    monkeypatch.setattr(auto_tokenizer.sys, "path", [str(trap), *sys.path])
    (model / "tokenizer_config.json").write_text("{}")
    with pytest.raises(InputError, match="run"):
        resolve(model, tmp_path / "2")
