"""The serving proof on a toy: a real server on one side, Megatron on the other."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from megatron_bridge import runs
from megatron_bridge.convert import import_hf
from megatron_bridge.proof import TENSORS
from tasks.core.errors import ConfigError, RetryableError
from tasks.core.store import Store
from tasks.export import proof, serve
from tasks.model.task import ModelConfig, model

TOY = Path(__file__).parents[2] / "deploy" / "recipes" / "toy"
PROMPTS = ["The capital of France is", "In 1999 東京"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A writable copy of a random model."""
    store = Store(tmp_path_factory.mktemp("store"))
    built = model.build(store, ModelConfig(source=str(TOY), seed=11)).artifact
    copy = tmp_path_factory.mktemp("model")
    for file in built.data.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


@pytest.fixture(scope="module")
def generated(folder: Path) -> list[list[int]]:
    """transformers' greedy tokens, which never stop early: the independent reference."""
    loaded, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(TOY),
    )
    rows = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt)["input_ids"]
        for _ in range(16):
            with torch.no_grad():
                ids.append(int(loaded(torch.tensor([ids])).logits[0, -1].argmax()))
        rows.append(ids[-16:])
    return rows


def compare(folder: Path, checkpoint: Path, log: Path) -> list[dict[str, Any]]:
    return proof.compare(folder, checkpoint, PROMPTS, 16, log, lambda *_, **__: None)


def test_served_and_trained_agree(folder: Path, generated: list[list[int]], tmp_path: Path) -> None:
    import_hf(folder, tmp_path / "checkpoint", proof=TENSORS)
    # The first prompt ends early on both sides, at a token it generates on the way.
    end = next(token for place, token in enumerate(generated[0]) if place >= 4)
    stop = generated[0].index(end) + 1
    early = tmp_path / "early"
    shutil.copytree(folder, early)
    settings = json.loads((early / "generation_config.json").read_text())
    # And a setting of the model's own that plain greedy search does not know.
    settings |= {"eos_token_id": [2, end], "repetition_penalty": 1.7}
    (early / "generation_config.json").write_text(json.dumps(settings))
    rows = compare(early, tmp_path / "checkpoint", tmp_path / "serve.log")
    assert [row["tokens_equal"] for row in rows] == [True, True]
    assert rows[0]["megatron_tokens"] == generated[0][:stop]
    assert rows[0]["served_token_count"] == stop
    whole = generated[1][: generated[1].index(end) + 1 if end in generated[1] else 16]
    assert rows[1]["megatron_tokens"] == whole
    tokenizer = AutoTokenizer.from_pretrained(TOY)
    assert rows[1]["prompt_tokens"] == tokenizer(PROMPTS[1])["input_ids"]


def test_another_model_behind_the_server_is_seen(
    folder: Path, generated: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two prompts' tokens is changed on Megatron's side, in its last token only."""
    changed = [generated[0], [*generated[1][:-1], (generated[1][-1] + 1) % 331]]
    monkeypatch.setattr(runs, "generate", lambda *_: changed)
    started: list[subprocess.Popen[bytes]] = []
    tied = serve.process.tied
    monkeypatch.setattr(
        serve.process, "tied", lambda *a, **k: started.append(tied(*a, **k)) or started[-1]
    )
    rows = compare(folder, tmp_path, tmp_path / "serve.log")
    assert [row["tokens_equal"] for row in rows] == [True, False]
    assert [child.poll() is not None for child in started] == [True]


def test_ids_are_read_back_only_where_text_tells_them() -> None:
    tokenizer = Tokenizer.from_file(str(TOY / "tokenizer.json"))
    ids = tokenizer.encode("The river runs north.").ids
    pieces = proof.stream(tokenizer, ids)
    assert "".join(pieces) == "The river runs north."
    assert proof.read_back(tokenizer, pieces) == ids
    # A character of three bytes is three tokens and one piece.
    assert proof.stream(tokenizer, tokenizer.encode("東").ids) == ["東"]
    assert proof.read_back(tokenizer, ["東"]) is None


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(RetryableError, match=r"ended with status [^0]"),
        serve.server(tmp_path / "no-model", tmp_path / "serve.log"),
    ):
        pass
    assert (tmp_path / "serve.log").stat().st_size > 0


def test_without_the_extra_the_proof_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="megaline"), serve.server(tmp_path, tmp_path / "log"):
        pass
    assert not (tmp_path / "log").exists()
