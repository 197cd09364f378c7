"""A model from a folder, from random weights, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks.core.errors import ConfigError, InputError, ProofError
from tasks.core.store import Store
from tasks.model.task import ModelConfig, model

TOY = Path(__file__).parents[2] / "deploy" / "recipes" / "toy"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def full(tmp_path: Path, store: Store) -> Path:
    """A folder with weights, as someone may have downloaded it."""
    built = model.build(store, ModelConfig(source=str(TOY), seed=3)).artifact
    folder = tmp_path / "Some Model"
    folder.mkdir()
    for file in built.data.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_random_weights_come_from_the_seed_and_load_with_nothing_else(store: Store) -> None:
    first, again, other = (
        model.build(store, ModelConfig(source=str(TOY), seed=seed), force=True).artifact
        for seed in (3, 3, 4)
    )
    assert first.record.files == again.record.files
    assert [f.sha256 for f in first.record.files] != [f.sha256 for f in other.record.files]
    assert first.fingerprint != other.fingerprint
    loaded = AutoModelForCausalLM.from_pretrained(first.data)
    assert sum(p.numel() for p in loaded.parameters()) == first.metrics["parameters"] == 268_344
    assert loaded.dtype == torch.float32
    assert first.metrics["vocab_size"] == loaded.config.vocab_size == 331
    assert loaded.config.rope_parameters == {"rope_theta": 10000.0, "rope_type": "default"}
    assert loaded.generation_config.eos_token_id == 2


def test_the_random_draw_leaves_the_global_generator_alone(store: Store) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    model.build(store, ModelConfig(source=str(TOY), seed=3))
    assert torch.equal(torch.rand(3), expected)


def test_the_toy_tokenizer_returns_any_text(store: Store) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TOY)
    text = "Tōkyō 東京 1234  \n\t don't 🙂 <|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer) == 331
    said = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert said == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_folder_is_copied_byte_for_byte(store: Store, full: Path) -> None:
    (full / "modeling_toy.py").write_text("raise SystemExit('never run')")
    (full / "pytorch_model.bin").write_bytes(b"pickle")
    (full / "onnx").mkdir()
    artifact = model.build(store, ModelConfig(source=full.as_uri())).artifact
    assert artifact.metrics["left_out"] == ["modeling_toy.py", "onnx", "pytorch_model.bin"]
    copied = {file.name: file.read_bytes() for file in artifact.data.iterdir()}
    assert copied == {
        name: (full / name).read_bytes()
        for name in (*copied, "model.safetensors", "tokenizer.json", "chat_template.jinja")
    }
    # Sealing makes files read-only: the source must not be what was sealed.
    assert (full / "config.json").stat().st_mode & 0o200


def test_any_changed_byte_is_another_model_and_any_other_place_is_not(
    store: Store, full: Path, tmp_path: Path
) -> None:
    def fingerprint(folder: Path) -> str:
        return model.fingerprint(ModelConfig(source=str(folder)), [], store.digests)

    moved = tmp_path / "elsewhere" / full.name
    shutil.copytree(full, moved)
    assert fingerprint(moved) == fingerprint(full)
    weights = load_file(moved / "model.safetensors")
    weights["model.norm.weight"][0] += 1e-3
    save_file(weights, moved / "model.safetensors", {"format": "pt"})
    assert fingerprint(moved) != fingerprint(full)


def test_missing_weights_are_never_replaced_without_a_seed(store: Store) -> None:
    with pytest.raises(InputError, match=r"no weights.*model\.seed"):
        model.build(store, ModelConfig(source=str(TOY)))


def test_a_seed_beside_weights_is_refused(store: Store, full: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.seed"):
        model.build(store, ModelConfig(source=str(full), seed=1))


def test_pickled_weights_are_refused(store: Store, full: Path) -> None:
    (full / "model.safetensors").unlink()
    (full / "pytorch_model.bin").write_bytes(b"never read")
    for seed in (None, 1):
        with pytest.raises(InputError, match=r"pickles.*pytorch_model\.bin"):
            model.build(store, ModelConfig(source=str(full), seed=seed))


def test_a_folder_without_a_tokenizer_is_refused(store: Store, full: Path) -> None:
    (full / "tokenizer.json").unlink()
    with pytest.raises(ProofError, match="no tokenizer"):
        model.build(store, ModelConfig(source=str(full)))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot be read"), ('{"model_type": "llama"}', "no vocab_size")],
)
def test_a_broken_config_is_told(store: Store, full: Path, text: str, message: str) -> None:
    (full / "config.json").write_text(text)
    with pytest.raises(InputError, match=message):
        model.build(store, ModelConfig(source=str(full)))


def test_a_folder_that_is_no_model_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json"):
        model.build(store, ModelConfig(source=str(tmp_path)))
