"""Held-out windows, the proof that training did not see them, and the report's gates."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from megatron_bridge import runs
from tasks.core.artifacts import HFModel
from tasks.core.errors import ProofError
from tasks.core.stage import Context
from tasks.core.store import Store
from tasks.evaluate import heldout, perplexity, report
from tasks.evaluate.task import EvaluateConfig, evaluate
from tasks.model.task import ModelConfig, model

TOY = Path(__file__).parents[2] / "deploy" / "recipes" / "toy"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A token dataset: documents 0 to 9 to train on, 10 and 11 to validate, 12 and 13 to test."""
    folder = tmp_path / "data"
    folder.mkdir()
    lines = []
    for split, first, count in (("train", 0, 10), ("validation", 10, 2), ("test", 12, 2)):
        ids: list[int] = []
        for index in range(count):
            ids += [20 + first + index] * 29 + [0]
            document = {"id": str(first + index), "title": "T|", "split": split, "index": index}
            lines.append(json.dumps({**document, "tokens": 30}))
        np.array(ids, np.uint16).tofile(folder / f"{split}.bin")
    (folder / "documents.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def ledger(path: Path, *documents: int) -> Path:
    """Two steps of two ranks, a sample each."""
    lines = [
        {"step": step, "sources": [[0], [0]], "documents": [[[documents[0]]], [list(documents)]]}
        for step in (1, 2)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_windows_come_from_test_and_only_then_from_validation(data: Path) -> None:
    short = heldout.choose(data, "uint16", length=10, most=45, least=1)
    assert short.predicted == 45
    assert [document["id"] for document in short.documents] == ["12", "13"]
    assert short.windows == [[32] * 10, [32] * 10, [32] * 9 + [0], [33] * 10, [33] * 10]
    longer = heldout.choose(data, "uint16", length=10, most=90, least=1)
    assert [document["id"] for document in longer.documents] == ["12", "13", "10", "11"]
    assert longer.windows[6] == [30] * 10
    everything = heldout.choose(data, "uint16", length=50, most=10_000, least=1)
    assert [len(window) for window in everything.windows] == [50, 50]
    one = heldout.choose(data, "uint16", length=500, most=10_000, least=1)
    assert [len(window) for window in one.windows] == [120]


def test_too_little_text_is_refused(data: Path) -> None:
    with pytest.raises(ProofError, match=r"at least 4096.*Got: 108"):
        heldout.choose(data, "uint16", length=10, most=8192, least=4096)


@pytest.mark.parametrize("length", [2, 10, 50, 119, 120, 121, 500])
@pytest.mark.parametrize("most", [1, 45, 108, 10_000])
def test_what_is_asked_early_is_what_is_found_later(data: Path, length: int, most: int) -> None:
    found = heldout.choose(data, "uint16", length, most, 1).predicted
    heldout.require(120, length, most, found, data)
    with pytest.raises(ProofError, match=f"Got: {found}\\."):
        heldout.require(120, length, most, found + 1, data)


def test_held_out_means_in_no_training_sample(data: Path, tmp_path: Path) -> None:
    chosen = heldout.choose(data, "uint16", length=10, most=45, least=1).documents
    seen = heldout.prove_unseen(chosen, data, ledger(tmp_path / "ledger.jsonl", 3, 4))
    assert seen == {"training_documents": 2, "training_samples": 4, "shared": []}
    # The same document under the same id in train and in test.
    text = (data / "documents.jsonl").read_text().replace('"id": "4"', '"id": "12"')
    (data / "documents.jsonl").write_text(text)
    with pytest.raises(ProofError, match=r"not held out.*\['12'\]"):
        heldout.prove_unseen(chosen, data, tmp_path / "ledger.jsonl")
    # Of another corpus in the blend, document 4 is another one, and so is id 12.
    for source in (1, None):
        other = heldout.prove_unseen(chosen, data, tmp_path / "ledger.jsonl", source)
        assert other == seen


def test_an_empty_ledger_proves_nothing(data: Path, tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text("")
    with pytest.raises(ProofError, match="0 samples"):
        heldout.prove_unseen([], data, tmp_path / "ledger.jsonl")


def test_gates_hold_up_to_their_limit_and_no_further() -> None:
    losses = {("hf", "before"): 3.0, ("megatron", "before"): 3.0 + 9e-6}
    losses |= {("hf", "after"): 2.9, ("megatron", "after"): 2.9}
    values = report.summary(losses, 4096)
    assert values["perplexity_after"] == math.exp(2.9)
    assert values["perplexity_ratio"] == pytest.approx(math.exp(-0.1))
    assert all(gate["holds"] for gate in report.gates(values, 1e-5, 0.91))
    assert [gate["holds"] for gate in report.gates(values, 8e-6, 0.9)] == [False, True, False]
    lost = report.summary({**losses, ("hf", "after"): math.nan}, 4096)
    assert [gate["holds"] for gate in report.gates(lost, 1e-5, None)] == [True, False]


@pytest.fixture
def toys(tmp_path: Path) -> dict[str, HFModel]:
    store = Store(tmp_path / "store")
    build = {name: model.build(store, ModelConfig(source=str(TOY), seed=seed)).artifact
             for name, seed in (("start", 1), ("other", 2))}  # fmt: skip
    return {name: HFModel(path=made.path, record=made.record) for name, made in build.items()}


def test_the_reference_is_transformers_own_loss(toys: dict[str, HFModel]) -> None:
    windows = torch.randint(331, (3, 17), generator=torch.Generator().manual_seed(0))
    told: list[int] = []
    losses = perplexity.token_losses(toys["start"].folder, windows.tolist(), told.append)
    loaded = AutoModelForCausalLM.from_pretrained(toys["start"].folder)
    with torch.no_grad():
        expected = loaded(windows, labels=windows).loss.item()
    assert perplexity.mean(losses) == pytest.approx(expected, abs=1e-6)
    assert [len(row) for row in losses] == [16, 16, 16]
    assert told == [16, 32, 48]


def test_the_reference_is_exact_on_a_large_vocabulary(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=49_152, hidden_size=20, intermediate_size=20, num_hidden_layers=1,
        num_attention_heads=2, initializer_range=1.0,
    )  # fmt: skip
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(config)
    made.save_pretrained(tmp_path)
    windows = torch.randint(49_152, (1, 120))
    with torch.no_grad():
        logits = made(windows).logits[0, :-1]
    exact = torch.nn.functional.cross_entropy(logits.double(), windows[0, 1:]).item()
    careless = torch.nn.functional.cross_entropy(logits, windows[0, 1:]).item()
    found = perplexity.mean(perplexity.token_losses(tmp_path, windows.tolist(), lambda _: None))
    assert abs(found - exact) < 5e-7
    # The control: torch's own loss in float32 would take a good part of the gate of 1e-5.
    assert abs(careless - exact) > 1e-6


class Sealed:
    """Stands for the sealed outputs that evaluate reads."""

    def __init__(self, data: Path) -> None:
        self.data, self.checkpoint, self.name = data, data / "checkpoint", "tokens"
        self.metrics = {"dtype": "uint16", "blend": [{"source": "tokens"}]}


def test_a_wrong_conversion_does_not_pass(
    data: Path, tmp_path: Path, toys: dict[str, HFModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megatron's side is answered by the start model: the export is right only if it equals it."""

    def megatron(folder: Path, windows: list[list[int]]) -> list[list[float]]:
        return perplexity.token_losses(toys["start"].folder, windows, lambda _: None)

    monkeypatch.setattr(runs, "token_losses", megatron)
    config = EvaluateConfig(sequence_length=20, max_tokens=90, min_tokens=50)
    trained = Sealed(tmp_path)
    ledger(tmp_path / "ledger.jsonl", 1, 2)

    def run(exported: HFModel, settings: EvaluateConfig = config) -> dict[str, Any]:
        ctx = Context(tmp_path, tmp_path, lambda *_, **__: None)
        return evaluate(
            settings, ctx, tokens=Sealed(data), start_model=toys["start"], start=trained,
            trained=trained, exported=exported,
        )  # fmt: skip

    values = run(toys["start"])
    assert values["perplexity_before"] == values["perplexity_after"]
    assert values["eval_tokens"] == 76
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["passed"] is True
    assert written["metrics"] == values
    assert [document["id"] for document in written["held_out"]["documents"]] == ["12", "13", "10"]
    page = (tmp_path / "report.md").read_text()
    assert f"{values['loss_hf_before']:.6f}" in page
    assert "| T\\| |" in page
    with pytest.raises(ProofError, match=r"does not pass.*loss_gap_after"):
        run(toys["other"])
    strict = config.model_copy(update={"max_perplexity_ratio": 0.97})
    with pytest.raises(ProofError, match=r"perplexity_ratio"):
        run(toys["start"], strict)
