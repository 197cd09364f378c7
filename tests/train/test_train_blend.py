"""Blends of sealed token datasets: what a run takes of each, what is refused, a kill in between."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from pydantic import ValidationError
from test_train_task import CONFIG, FolderConfig, TokensConfig, start, tokens

from megatron_bridge import resume, runs
from megatron_bridge.convert import import_hf
from megatron_bridge.data import indices
from tasks.core.artifacts import TokenDataset
from tasks.core.errors import ConfigError, InputError, ProofError, RetryableError
from tasks.core.store import Store
from tasks.tokens.task import TokensConfig as RealTokensConfig
from tasks.train import blend
from tasks.train.blend import Portion
from tasks.train.task import TrainStage, train


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A line with a token dataset, and another store with a second one."""
    root = tmp_path_factory.mktemp("blend")
    toys.hf_model("qwen2", root / "hf")
    import_hf(root / "hf", root / "start")
    store, other = Store(root / "store"), Store(root / "other")
    return {
        "store": store,
        "inputs": {
            "start": start.build(store, FolderConfig(folder=str(root / "start"))).artifact,
            "tokens": tokens.build(store, TokensConfig()).artifact,
        },
        "other": tokens.build(other, TokensConfig(documents=40)).artifact,
        "root": root,
    }


def blended(line: dict[str, Any], **changes: Any) -> TrainStage:
    """Three to one, 12 samples of 30 tokens from the line's own and 4 from the other."""
    portions = (
        Portion(tokens="line", weight=3),
        Portion(tokens=str(line["other"].path), weight=1),
    )
    return CONFIG.model_copy(
        update={"steps": 4, "blend": portions, "checkpoint_every": 1, **changes}
    )


def test_a_killed_blend_goes_on_without_a_sample_twice_or_left_out(
    line: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, inputs, config = line["store"], line["inputs"], blended(line)
    undisturbed = train.build(store, config, inputs).artifact
    assert [row["samples"] for row in undisturbed.metrics["blend"]] == [12, 4]
    assert [row["source"] for row in undisturbed.metrics["blend"]] == [
        inputs["tokens"].name, line["other"].name,
    ]  # fmt: skip

    work = runs.train

    def lost(spec: Any, launcher: Any, on_step: Any, on_table: Any) -> Any:
        def told(entry: dict[str, Any]) -> None:
            on_step(entry)
            if entry["step"] == 2:
                raise RetryableError("the machine went away")

        return work(spec, launcher, told, on_table)

    monkeypatch.setattr(runs, "train", lost)
    again = Store(line["root"] / "again")
    with pytest.raises(RetryableError):
        train.build(again, config, inputs)
    monkeypatch.setattr(runs, "train", work)
    index = store.root / "index"
    built = [path.stat().st_mtime_ns for path in index.iterdir()]
    resumed = train.build(again, config, inputs).artifact
    assert resumed.metrics["resumed_from"] >= 1
    ledgers = [(one.data / resume.LEDGER).read_text() for one in (undisturbed, resumed)]
    assert ledgers[0] == ledgers[1]

    steps = [json.loads(text) for text in ledgers[1].splitlines()]
    taken = [i for step in steps for rank in step["samples"] for i in rank]
    assert sorted(taken) == list(range(16))
    drawn = Counter(source for step in steps for rank in step["sources"] for source in rank)
    assert drawn == {0: 12, 1: 4}
    # The indices were built once, in the first run.
    assert len(built) == 3
    assert built == [path.stat().st_mtime_ns for path in index.iterdir()]


def test_training_takes_what_the_indices_say(line: dict[str, Any]) -> None:
    """The control: an index is altered where it lies, and training follows it."""
    config = blended(line, steps=1, world_size=1, seed=5)
    own = line["inputs"]["tokens"]
    sources = blend.sources(config.blend, own)
    samples = indices.build(sources, config, line["store"].root / "index")
    place = samples.sources[1] / indices.DOCUMENT
    np.save(place, np.full_like(np.load(place), 37))
    artifact = train.build(Store(line["root"] / "control"), config, line["inputs"]).artifact
    (step,) = resume.read_lines(artifact.data / resume.LEDGER)
    assert step["samples"] == [[0, 1, 2, 3]]
    assert step["sources"] == [[0, 1, 0, 0]]
    assert set(step["documents"][0][1]) == {37}


def test_a_blend_is_known_by_what_it_is_not_by_where(line: dict[str, Any]) -> None:
    digests = line["store"].digests

    def fingerprint(*portions: Portion) -> str:
        config = CONFIG.model_copy(update={"blend": portions})
        return train.address(config, line["inputs"], digests).fingerprint

    here, own = str(line["other"].path), Portion(tokens="line", weight=1)
    moved = line["root"] / "moved"
    shutil.copytree(here, moved, dirs_exist_ok=True)
    first = fingerprint(own, Portion(tokens=here, weight=2))
    assert fingerprint(own, Portion(tokens=str(moved), weight=2)) == first
    assert fingerprint(own, Portion(tokens=here, weight=2, repeats=True)) == first
    assert fingerprint(own, Portion(tokens=here, weight=3)) != first
    assert fingerprint() != first


def test_a_weight_that_asks_for_more_than_is_there_is_refused(line: dict[str, Any]) -> None:
    # 3,030 tokens make 100 samples of 30; 40 documents have 1,620 tokens, 53 samples.
    own, here = line["inputs"]["tokens"], str(line["other"].path)
    even = [Portion(tokens="line", weight=1), Portion(tokens=here, weight=1)]
    rows = blend.table(even, own, 106, 30)
    assert [(row["samples"], row["epochs"]) for row in rows] == [(53, 0.5248), (53, 0.9815)]
    with pytest.raises(ConfigError, match=rf"{line['other'].name}.*53 samples.*54 of 108 samples"):
        blend.table(even, own, 108, 30)
    even[1] = even[1].model_copy(update={"repeats": True})
    assert blend.table(even, own, 108, 30)[1]["repeated_tokens"] == 0
    assert blend.table(even, own, 200, 30)[1]["repeated_tokens"] == 3000 - 1620
    # Without weights nothing was promised, and the line's own text is gone through again.
    assert blend.table([], own, 202, 30)[0]["epochs"] == 2.0


def dataset(line: dict[str, Any], name: str, **changes: Any) -> Portion:
    store = Store(line["root"] / name)
    return Portion(tokens=str(tokens.build(store, TokensConfig(**changes)).artifact.path), weight=1)


def test_what_does_not_fit_is_refused(line: dict[str, Any], tmp_path: Path) -> None:
    own = line["inputs"]["tokens"]
    first = Portion(tokens="line", weight=1)
    foreign = dataset(line, "foreign", documents=30, tokenizer="[]")
    with pytest.raises(InputError, match=r"does not fit the model: its tokenizer_sha256"):
        blend.table([first, foreign], own, 5, 30)
    for field, config in (("seed", {"seed": 2}), ("test", {"test": 0.1})):
        apart = dataset(line, field, documents=30, **config)
        with pytest.raises(InputError, match=rf"split in another way.*its tokens\.{field} is"):
            blend.table([first, apart], own, 5, 30)
    with pytest.raises(InputError, match=r"no sealed token dataset.*nowhere"):
        blend.identity([first, Portion(tokens="/nowhere", weight=1)])
    with pytest.raises(InputError, match=r"one of to_megatron"):
        blend.identity([Portion(tokens=str(line["inputs"]["start"].path), weight=1)])
    for twice in ([first, first], [first, dataset(line, "twin")], [dataset(line, "twin")]):
        with pytest.raises(ConfigError, match=r"made of one corpus"):
            blend.table(twice, own, 5, 30)
    with pytest.raises(ValidationError):
        Portion(tokens="line", weight=0)


def test_the_fields_that_deal_documents_to_splits_are_known() -> None:
    assert set(blend._SPLIT_BY) <= RealTokensConfig.model_fields.keys()


def test_another_models_tokens_are_refused(line: dict[str, Any]) -> None:
    record = line["inputs"]["tokens"].record
    other = record.model_copy(update={"metrics": {**record.metrics, "vocab_size": 332}})
    inputs = {
        **line["inputs"],
        "tokens": TokenDataset(path=line["inputs"]["tokens"].path, record=other),
    }
    with pytest.raises(InputError, match=r"for another model.*vocabulary of 331"):
        train.build(Store(line["root"] / "vocabulary"), CONFIG, inputs)


def test_a_tokenizer_that_changed_under_its_dataset_is_noticed(line: dict[str, Any]) -> None:
    portion = dataset(line, "changed", documents=31)
    file = Path(portion.tokens) / "data" / "tokenizer.json"
    file.chmod(0o644)
    file.write_text("[]")
    config = CONFIG.model_copy(update={"blend": (Portion(tokens="line", weight=1), portion)})
    with pytest.raises(ProofError, match=r"no longer the one.*tokenizer\.json"):
        train.build(Store(line["root"] / "late"), config, line["inputs"])
