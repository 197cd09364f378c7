"""The command on a store whose records were written by hand: no stage runs here."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

from flows.cli import StageName, _guarded, main
from flows.config import PipelineConfig, load
from flows.line import needed, plan
from flows.reports import summary
from tasks.core.errors import PipelineError, ProofError
from tasks.core.record import FileEntry, Record
from tasks.core.store import Store

RECIPE = Path(__file__).parents[2] / "deploy" / "recipes" / "toy.yaml"
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
METRICS = {
    "splits": {name: {"documents": 9, "tokens": 9000} for name in ("train", "validation", "test")}
}
AFTER_TRAIN = ["train", "to_hf", "evaluate", "export"]


def seal(root: Path, *overrides: str) -> Store:
    """Write what a whole run of the toy would have sealed, with one small file a stage."""
    store = Store(root)
    for planned in plan(load(RECIPE, overrides), store).values():
        address = planned.address
        data = store.path(address) / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "file").write_text("abc")
        record = Record(
            schema=1, stage=address.stage, version=address.version, label=address.label,
            fingerprint=address.fingerprint, identity=address.identity,
            inputs=list(address.inputs), files=[FileEntry(path="file", bytes=3, sha256=ABC)],
            metrics=METRICS, provenance={}, created_at=datetime.now(UTC), seconds=1.0,
        )  # fmt: skip
        store.storage.put(f"{address.key}/artifact.json", record.encode())
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return seal(tmp_path / "store")


def ask(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """The JSON document that a command prints, and nothing else."""
    assert _guarded([*map(str, arguments), "--json"]) in (0, 1)
    return json.loads(capsys.readouterr().out)


def states(document: Any) -> dict[str, str]:
    return {row["stage"]: row["state"] for row in document["stages"]}


def test_stage_names_are_those_of_the_line() -> None:
    assert list(get_args(StageName)) == list(PipelineConfig.model_fields)
    assert set(get_args(StageName)) == set(needed(load(RECIPE), None))


def test_needed_is_what_a_stage_stands_on() -> None:
    config = load(RECIPE)
    assert needed(config, "clean") == ["ingest", "clean"]
    assert needed(config, "to_megatron") == ["model", "to_megatron"]
    assert "evaluate" not in needed(config, "to_hf")


def test_plan_marks_what_depends_on_a_change(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = ask(capsys, "plan", RECIPE, "--root", store.root)
    assert set(states(everything).values()) == {"sealed"}
    changed = ask(capsys, "plan", RECIPE, "train.steps=7", "--root", store.root)
    assert [name for name, state in states(changed).items() if state == "to build"] == AFTER_TRAIN
    runtime = ask(capsys, "plan", RECIPE, "train.checkpoint_every=1", "--root", store.root)
    assert set(states(runtime).values()) == {"sealed"}


def test_plan_tells_what_training_takes_of_each_source(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # 6 steps of 4 samples of 64 tokens, of 9,000.
    (row,) = ask(capsys, "plan", RECIPE, "--root", store.root)["samples"]
    line = plan(load(RECIPE), store)["tokens"].artifact
    assert line is not None
    assert row == {
        "source": line.name, "documents": 9, "tokens": 9000, "weight": 1.0, "samples": 24,
        "epochs": 0.1707, "repeated_tokens": 0,
    }  # fmt: skip
    assert _guarded(["plan", str(RECIPE), "--root", str(store.root)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[-3:] == ["24", "0.1707", "0"]

    other = seal(tmp_path / "other", "clean.min_words=51")
    place = plan(load(RECIPE, ["clean.min_words=51"]), other)["tokens"].artifact
    assert place is not None
    blended = f"train.blend=[{{tokens: line, weight: 1}}, {{tokens: {place.path}, weight: 3}}]"
    answer = ask(capsys, "plan", RECIPE, blended, "--root", store.root)
    assert [name for name, state in states(answer).items() if state == "to build"] == AFTER_TRAIN
    assert [(row["samples"], row["weight"]) for row in answer["samples"]] == [(6, 0.25), (18, 0.75)]
    changed = ask(capsys, "why", RECIPE, "train", blended, "--root", store.root)["differences"]
    assert len(changed) == 1
    assert place.fingerprint in changed[0]
    assert str(place.path) not in changed[0]
    assert (
        _guarded(["plan", str(RECIPE), blended, "train.steps=60", "--root", str(store.root)]) == 2
    )
    said = capsys.readouterr().err
    assert "A weight asks for more of a source than is there" in said
    assert place.name in said


def test_plan_refuses_too_little_held_out_text(store: Store) -> None:
    fits = load(RECIPE, ["evaluate.max_tokens=18001", "evaluate.min_tokens=17703"])
    assert plan(fits, store)["train"].artifact is not None
    wants = load(RECIPE, ["evaluate.max_tokens=18001", "evaluate.min_tokens=17704"])
    with pytest.raises(ProofError, match=r"too little held-out text.*Got: 17703\.") as caught:
        plan(wants, store)
    assert str(store.root / "tokens") in str(caught.value)
    assert plan(wants, store, "train")["train"].artifact is not None


@pytest.mark.parametrize("stage", AFTER_TRAIN)
def test_why_names_the_field(store: Store, capsys: pytest.CaptureFixture[str], stage: str) -> None:
    answer = ask(capsys, "why", RECIPE, stage, "train.steps=7", "--root", store.root)
    assert answer["differences"] == ["train.steps: 6 -> 7"]
    assert answer["state"] == "to build"
    assert Path(answer["nearest"]).parent.parent == store.root / stage


def test_why_compares_with_the_nearest(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    seal(store.root, "train.steps=7", "train.seed=5")
    answer = ask(
        capsys, "why", RECIPE, "to_hf", "train.steps=7", "train.seed=6", "--root", store.root
    )
    assert answer["differences"] == ["train.seed: 5 -> 6"]


def test_why_without_anything_sealed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, "why", RECIPE, "train", "--root", tmp_path)
    assert (answer["nearest"], answer["differences"]) == (None, [])


def test_a_sealed_line_is_answered_from_its_records(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    started = time.monotonic()
    document = ask(capsys, "run", RECIPE, "--root", store.root)
    assert time.monotonic() - started < 3
    assert set(states(document).values()) == {"Reused"}
    assert document["stages"][0]["metrics"] == METRICS
    until = ask(capsys, "run", RECIPE, "--until", "clean", "--root", store.root)
    assert [row["state"] for row in until["stages"]] == ["Reused"] * 2 + ["NotReached"] * 7


def train_folder(store: Store) -> Path:
    artifact = plan(load(RECIPE), store)["train"].artifact
    assert artifact is not None
    return artifact.path


def test_show_tells_record_and_ancestors(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train_folder(store)
    for path in (folder, folder / "data", folder / "artifact.json"):
        shown = ask(capsys, "show", path)
        assert shown["record"]["stage"] == "train"
        assert {key.split("/")[0] for key in shown["ancestors"]} == {
            "ingest", "clean", "model", "tokens", "to_megatron",
        }  # fmt: skip
    assert _guarded(["show", str(folder)]) == 0
    assert "made from" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["none", "bytes", "size", "missing", "stranger", "identity"])
def test_verify_sees_damage(store: Store, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    folder = train_folder(store)
    file = folder / "data" / "file"
    if damage == "bytes":
        file.write_text("abd")
    elif damage == "size":
        file.write_text("abcd")
    elif damage == "missing":
        file.unlink()
    elif damage == "stranger":
        (folder / "data" / "more").write_text("x")
    elif damage == "identity":
        record = folder / "artifact.json"
        record.write_text(record.read_text().replace('"steps": 6', '"steps": 60'))
    shallow = ask(capsys, "verify", folder)
    deep = ask(capsys, "verify", folder, "--deep")
    assert shallow["ok"] == (damage in ("none", "bytes"))
    assert deep["ok"] == (damage == "none")
    assert _guarded(["verify", str(folder), "--deep"]) == (0 if damage == "none" else 1)


@pytest.mark.parametrize(
    "arguments",
    [["plan"], ["nothing"], ["run", str(RECIPE), "--until", "x"], ["show", "/nowhere"],
     ["plan", str(RECIPE), "train.stepz=1"], ["why", str(RECIPE), "trian"]],
)  # fmt: skip
def test_a_users_mistake_is_one_paragraph_and_exit_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    out, err = capsys.readouterr()
    assert caught.value.code == 2
    assert out == ""
    assert err.startswith("megaline: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["run", "plan", "why", "show", "verify"])
def test_help_gives_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _guarded([command, "--help"]) == 0
    assert f"megaline {command} " in capsys.readouterr().out


def test_summary_shows_the_proofs() -> None:
    evaluated = {
        "perplexity_before": 15.5, "perplexity_after": 14.0, "eval_tokens": 8192,
        "loss_hf_before": 2.7, "loss_megatron_before": 2.700001,
        "loss_hf_after": 2.6, "loss_megatron_after": 2.6,
    }  # fmt: skip
    exported = {
        "served_tokens": [[1, 2], None], "megatron_tokens": [[1, 2], [3]],
        "served_text": ["a", "b"], "megatron_text": ["a", "b"], "compared": ["ids", "text"],
    }  # fmt: skip
    rows = [
        {"stage": "evaluate", "metrics": evaluated}, {"stage": "export", "metrics": exported},
    ]  # fmt: skip
    text = "\n".join(summary(rows))
    assert "15.5000 -> 14.0000  (-9.68%, 8,192 tokens)" in text
    assert "difference 1.0e-06" in text
    assert "[1, 2]" in text
    assert summary([]) == []


def test_a_store_that_cannot_be_written_is_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    code = _guarded(["plan", str(RECIPE), "--root", str(tmp_path / "file")])
    assert code == 2
    err = capsys.readouterr().err
    assert "The store is no folder" in err
    assert "Traceback" not in err


def test_what_is_not_wanted_is_not_asked_for(tmp_path: Path) -> None:
    config = load(RECIPE, ["model.source=/nowhere"])
    assert list(plan(config, Store(tmp_path), "clean")) == ["ingest", "clean"]
    with pytest.raises(PipelineError, match="/nowhere"):
        plan(config, Store(tmp_path))
