"""A tokenizer's files that are not what tokenizers write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_bridge.errors import InputError
from megatron_bridge.megatron_lm.tokenizer import Tokenizer

WHOLE = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 5, "content": "<s>"}]}


def written(folder: Path, **files: Any) -> Tokenizer:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return Tokenizer(folder)


def test_ids_are_read_from_each_file_that_has_some(tmp_path: Path) -> None:
    later = {"added_tokens_decoder": {"7": {"content": "</s>"}}, "eos_token": {"content": "</s>"}}
    found = written(tmp_path, tokenizer=WHOLE, added_tokens={"c": 6}, tokenizer_config=later)
    assert found.size == 8
    assert found.special() == {"eos_token_id": 7}
    unigram = {"model": {"vocab": [["a", -1.5], ["b", 0]]}}
    assert written(tmp_path, tokenizer=unigram, added_tokens={}, tokenizer_config={}).size == 2


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer", {"model": None}, "model"),
        ("tokenizer", WHOLE | {"added_tokens": [{"id": 5}]}, r"added_tokens\.0\.content"),
        ("tokenizer", WHOLE | {"added_tokens": [{"id": "x", "content": "s"}]}, r"tokens\.0\.id"),
        ("tokenizer", {"model": {"vocab": {"a": "x"}}}, "vocab"),
        ("tokenizer", [1], "the whole file"),
        ("vocab", {"a": None}, "vocab.json, a"),
        ("tokenizer_config", {"added_tokens_decoder": {"x": {"content": "s"}}}, "decoder.x"),
        ("tokenizer_config", {"added_tokens_decoder": {"7": 7}}, "decoder.7"),
    ],
)
def test_other_things_are_a_sentence(tmp_path: Path, name: str, content: Any, words: str) -> None:
    with pytest.raises(InputError, match=rf"{name}\.json.*Expected") as error:
        print(written(tmp_path, **{name: content}).size)
    assert error.match(words)
