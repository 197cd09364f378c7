"""The train stage on a toy: what is sealed, what bears on its fingerprint, learning rate 0."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from pydantic import BaseModel

from megatron_bridge import checkpoint, resume, torch_dist
from megatron_bridge.config import TrainConfig, TrainSpec
from megatron_bridge.convert import import_hf
from tasks.core.artifacts import MegatronCheckpoint, TokenDataset
from tasks.core.errors import ConfigError, ProofError
from tasks.core.stage import Context, Outcome, stage
from tasks.core.store import Store
from tasks.train.task import TrainStage, train

CONFIG = TrainStage(
    steps=3,
    world_size=2,
    sequence_length=30,
    global_batch_size=4,
    learning_rate=0.0,
    checkpoint_every=2,
)


class FolderConfig(BaseModel):
    folder: str


@stage("to_megatron", version=1, output=MegatronCheckpoint, label=lambda config, inputs: "toy")
def start(config: FolderConfig, ctx: Context) -> dict[str, Any]:
    shutil.copytree(config.folder, ctx.out / "checkpoint")
    return {}


class TokensConfig(BaseModel):
    documents: int = 60
    tokenizer: str = "{}"
    seed: int = 1
    validation: float = 0.05
    test: float = 0.05


@stage("tokens", version=1, output=TokenDataset, label=lambda config, inputs: "toy")
def tokens(config: TokensConfig, ctx: Context) -> dict[str, Any]:
    toys.indexed_dataset(ctx.out / "train", config.documents)
    (ctx.out / "tokenizer.json").write_text(config.tokenizer)
    count = sum(range(21, 21 + config.documents))
    return {
        "end_of_document": toys.END_OF_DOCUMENT,
        "vocab_size": toys.VOCAB,
        "dtype": "uint16",
        "tokenizer_file": "tokenizer.json",
        "tokenizer_sha256": hashlib.sha256(config.tokenizer.encode()).hexdigest(),
        "splits": {"train": {"documents": config.documents, "tokens": count}},
    }


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("train_stage")
    toys.hf_model("qwen2", root / "hf")
    import_hf(root / "hf", root / "start")
    store = Store(root / "store")
    inputs = {
        "start": start.build(store, FolderConfig(folder=str(root / "start"))).artifact,
        "tokens": tokens.build(store, TokensConfig()).artifact,
    }
    told: list[str] = []
    outcome = train.build(store, CONFIG, inputs, listener=lambda part, text: told.append(text))
    return {"store": store, "inputs": inputs, "outcome": outcome, "told": told}


def test_a_sealed_run_holds_checkpoint_log_and_ledger(line: dict[str, Any]) -> None:
    outcome: Outcome = line["outcome"]
    artifact = outcome.artifact
    assert isinstance(artifact, MegatronCheckpoint)
    info = checkpoint.read_info(artifact.checkpoint)
    assert (info.iteration, info.consumed_samples, info.optimizer) == (3, 12, True)
    assert (artifact.checkpoint / "hf" / "config.json").is_file()
    assert [entry["step"] for entry in resume.read_lines(artifact.data / resume.LOG)] == [1, 2, 3]
    metrics = artifact.metrics
    assert metrics["tokens"] == 3 * 4 * 30
    assert metrics["steps"] == 3
    assert metrics["resumed_from"] == 0
    assert metrics["epochs"] == pytest.approx(360 / sum(range(21, 81)), abs=1e-4)
    assert metrics["blend"] == [
        {"source": line["inputs"]["tokens"].name, "documents": 60, "tokens": 3030, "weight": 1.0,
         "samples": 12, "epochs": 0.1188, "repeated_tokens": 0}
    ]  # fmt: skip
    assert any("3/3 steps loss" in text for text in line["told"])
    assert not (artifact.path / "work").exists()


def test_learning_rate_0_leaves_every_weight_bit_for_bit(line: dict[str, Any]) -> None:
    with (
        torch_dist.Reader(line["inputs"]["start"].checkpoint) as before,
        torch_dist.Reader(line["outcome"].artifact.checkpoint) as after,
    ):
        assert len(before.shapes()) == 9
        for key in before.shapes():
            assert torch.equal(before.read(key), after.read(key)), key
        moments = [key for key in after.shapes() if key.endswith(".exp_avg")]
        # Megatron leaves the padding between parameters as it finds it, NaN included.
        assert any(after.read(key).count_nonzero() > 1000 for key in moments)


def test_the_same_run_is_reused_however_often_it_saves(line: dict[str, Any]) -> None:
    changed = CONFIG.model_copy(update={"checkpoint_every": 1, "checkpoints_kept": 7})
    assert train.build(line["store"], changed, line["inputs"]).state == "Reused"
    longer = CONFIG.model_copy(update={"steps": 4})
    digests = line["store"].digests
    assert (
        train.address(longer, line["inputs"], digests).fingerprint
        != train.address(CONFIG, line["inputs"], digests).fingerprint
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"world_size": 3, "tensor_parallel": 2}, "world_size"),
        ({"global_batch_size": 3, "world_size": 2}, "global_batch_size"),
        ({"sequence_parallel": True}, "sequence_parallel"),
        ({"warmup_steps": 99}, "warmup_steps"),
        ({"min_learning_rate": 1.0}, "min_learning_rate"),
        (
            {"megatron": {"cross_entropy_fusion_impl": "linear"}},
            "megatron.cross_entropy_fusion_impl",
        ),
    ],
)
def test_fields_that_do_not_fit_each_other_are_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=rf"Where: train\.{field}\."):
        TrainStage(**changes)
    with pytest.raises(ConfigError, match=rf"Where: {field}\."):
        TrainConfig(**changes)


@pytest.mark.parametrize("way", ["native", "te"])
def test_losses_from_logits_are_not_refused(way: str) -> None:
    extras = {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": way}
    assert TrainStage(megatron=extras).megatron == extras


def test_a_sequence_longer_than_the_model_is_refused(line: dict[str, Any]) -> None:
    config = CONFIG.model_copy(update={"sequence_length": 131})
    with pytest.raises(ConfigError, match="sequence_length"):
        train.build(line["store"], config, line["inputs"])


def test_a_split_without_tokens_is_refused(line: dict[str, Any], tmp_path: Path) -> None:
    from megatron_bridge import runs
    from tasks.core.errors import InputError

    spec = TrainSpec(
        config=TrainConfig(sequence_length=30),
        checkpoint=line["inputs"]["start"].checkpoint,
        train_data=tmp_path / "none",
        end_of_document=0,
        run_dir=tmp_path / "run",
    )
    with pytest.raises(InputError, match="no such file"):
        runs.train(spec)


def test_event_files_tell_what_the_log_tells(line: dict[str, Any]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    artifact = line["outcome"].artifact
    log = resume.read_lines(artifact.data / resume.LOG)
    found = EventAccumulator(str(artifact.data / "tensorboard")).Reload()
    for key in ("loss", "learning_rate", "grad_norm", "tokens_per_second"):
        told = [(event.step, event.value) for event in found.Scalars(f"train/{key}")]
        assert told == [(entry["step"], pytest.approx(entry[key])) for entry in log]


def test_a_start_without_proof_is_refused_unless_somebody_insists(
    line: dict[str, Any], tmp_path: Path
) -> None:
    from tasks.core.errors import ProofError

    bare = tmp_path / "bare"
    shutil.copytree(line["inputs"]["start"].checkpoint, bare)
    (bare / "certificate.json").chmod(0o644)
    (bare / "certificate.json").unlink()
    info = checkpoint.read_info(line["inputs"]["start"].checkpoint)
    checkpoint.commit(bare, **info.model_dump(exclude={"format", "files"}))
    store = line["store"]
    inputs = {
        **line["inputs"],
        "start": start.build(store, FolderConfig(folder=str(bare))).artifact,
    }
    config = CONFIG.model_copy(update={"steps": 1, "world_size": 1})
    with pytest.raises(ProofError, match=r"train\.unproven"):
        train.build(store, config, inputs)
    insisting = config.model_copy(update={"unproven": True})
    artifact = train.build(store, insisting, inputs).artifact
    assert artifact.metrics["proven"] is False
    assert checkpoint.read_info(artifact.checkpoint).proven is False
    assert json.loads((artifact.path / "artifact.json").read_text())["metrics"]["proven"] is False


def test_a_model_with_another_tokenizer_than_the_tokens_is_not_trained(
    line: dict[str, Any], tmp_path: Path
) -> None:
    given = line["inputs"]
    metrics = {**given["tokens"].metrics, "tokenizer_files": {"tokenizer.json": "0" * 64}}
    record = given["tokens"].record.model_copy(update={"metrics": metrics})
    changed = given["tokens"].model_copy(update={"record": record})
    with pytest.raises(ProofError, match="tokenizer is not the one"):
        train(CONFIG, Context(tmp_path, tmp_path, print), start=given["start"], tokens=changed)
