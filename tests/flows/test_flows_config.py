"""Recipes and overrides: precedence, paths, and errors that name the field."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flows.config import PipelineConfig, load
from tasks.core.errors import ConfigError

RECIPES = Path(__file__).parents[2] / "deploy" / "recipes"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "recipe.yaml"
    path.parent.mkdir()
    path.write_text(
        "ingest: {source: ./dump.xml}\nmodel: {source: ../model}\n"
        "train: {steps: 5, learning_rate: 1e-4}\n"
    )
    return path


def test_defaults_then_recipe_then_overrides(recipe: Path) -> None:
    config = load(recipe, ["train.steps=7", "train.megatron.init_method_std=2e-2"])
    assert config.train.seed == type(config.train).model_fields["seed"].default
    assert config.train.learning_rate == 1e-4
    assert config.train.steps == 7
    assert config.train.megatron == {"init_method_std": 0.02}
    assert load(recipe).train.steps == 5


def test_paths_are_relative_to_the_recipe_and_overrides_to_here(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(recipe)
    assert config.ingest.source == str(recipe.parent / "dump.xml")
    assert config.model.source == str(recipe.parent.parent / "model")
    monkeypatch.chdir("/")
    assert load(recipe, ["ingest.source=./x"]).ingest.source == "/x"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.stepz=7", ["train.stepz", "did you mean train.steps"]),
        ("trian.steps=7", ["trian", "did you mean train"]),
        ("zzz.qqq=1", ["Unknown name zzz"]),
        ("train.steps=many", ["train.steps", "integer", "'many'"]),
        ("train.steps=0", ["train.steps", "greater than or equal to 1", "0"]),
        ("train.decay=cubic", ["train.decay", "cosine"]),
        ("train.steps", ["stage.field=value"]),
        ("steps=7", ["stage.field=value"]),
        ("train.steps=[1", ["not YAML"]),
        ("train.global_batch_size=3", ["Where: train.global_batch_size.", "multiple"]),
        ("train.pipeline_parallel=3", ["Where: train.world_size.", "multiple"]),
        ("train.warmup_steps=6", ["Where: train.warmup_steps.", "at most steps = 5"]),
        ("train.min_learning_rate=1", ["Where: train.min_learning_rate.", "0.0001"]),
        ("train.sequence_parallel=true", ["Where: train.sequence_parallel.", "tensor_parallel"]),
        (
            "train.megatron.cross_entropy_fusion_impl=linear",
            ["Where: train.megatron.cross_entropy_fusion_impl.", "native or te", "linear"],
        ),
        ("tokens={validation: 0, test: 0}", ["stage.field=value"]),
    ],
)
def test_a_wrong_override_is_one_paragraph(recipe: Path, override: str, words: list[str]) -> None:
    overrides = ["train.world_size=2", "train.global_batch_size=2", override]
    with pytest.raises(ConfigError) as caught:
        load(recipe, overrides)
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in words), text
    assert caught.value.exit_code == 2


def test_check_across_stages(recipe: Path) -> None:
    with pytest.raises(ConfigError, match="kept from training"):
        load(recipe, ["tokens.validation=0", "tokens.test=0"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ingest: {source: a}\nmodel: {source: b}\nmodel: {source: c}\n", "given twice"),
        ("ingest: [\n", "line 2"),
        ("- 1\n", "no table"),
        ("ingest: {}\nmodel: {source: b}\n", "ingest.source is missing"),
        ("model: {source: !!python/object/apply:os.system [ls]}", "not YAML"),
    ],
)
def test_a_wrong_recipe_is_one_paragraph(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.yaml"):
        load(tmp_path / "nope.yaml")


def test_configuration_is_frozen_and_goes_there_and_back() -> None:
    config = load(RECIPES / "toy.yaml")
    assert PipelineConfig.model_validate(config.model_dump()) == config
    with pytest.raises(ValueError, match="frozen"):
        config.train = config.train  # type: ignore[misc]  # mypy knows it too, and refuses it


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_plans_fast_without_torch_and_prefect(path: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time; started = time.monotonic()\n"
        "from flows.cli import _guarded\n"
        "assert _guarded(sys.argv[1:]) == 0\n"
        "heavy = {'torch', 'prefect', 'transformers', 'numpy', 'lxml', 'nltk', 'ftfy'}\n"
        "print(heavy & set(sys.modules), time.monotonic() - started, file=sys.stderr)"
    )
    for arguments in (["plan", str(path), "--root", str(tmp_path)], ["--help"]):
        run = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        heavy, seconds = run.stderr.rsplit(maxsplit=1)
        assert heavy == "set()"
        assert float(seconds) < 3
        assert "evaluate" in run.stdout or "verify" in run.stdout
