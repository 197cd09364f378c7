"""Certificates: what they show, that each fails after one change, and who asks for one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from safetensors.torch import load_file, save_file

from megatron_bridge import __main__ as command
from megatron_bridge import certificate, checkpoint, runs
from megatron_bridge.config import TrainConfig, TrainSpec
from megatron_bridge.convert import export_hf, import_hf
from megatron_bridge.errors import ProofError
from megatron_bridge.proof import Proof
from megatron_bridge.verify import verify

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 3.0, "original_max_position_embeddings": 40,
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """`llama`, `qwen2` (tied) and `long` (with rotary scaling), and a checkpoint of each."""
    root = tmp_path_factory.mktemp("certificates")
    toys.hf_model("llama", root / "llama")
    toys.hf_model("qwen2", root / "qwen2")
    toys.hf_model("llama", root / "long", rope_parameters=LLAMA3)
    for name in ("llama", "qwen2", "long"):
        import_hf(root / name, root / f"{name}.ckpt")
    return root


def changed(root: Path, name: str, folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A copy of a toy with another `config.json`."""
    shutil.copytree(root / name, folder)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_an_import_writes_what_was_compared(root) -> None:
    found = json.loads((root / "llama.ckpt" / "certificate.json").read_text())
    assert (found["kind"], found["holds"], found["proven"]) == ("import", True, True)
    section = found["architecture"]
    assert section["compared"]["norm epsilon"] == 1e-6
    assert section["compared"]["rotary frequencies"][0] == 1.0
    assert section["compared"]["key-value heads"] == 2
    # 331 rows of embedding and output, padded to 384; summed by the file itself.
    weights = load_file(root / "llama" / "model.safetensors")
    count = sum(tensor.numel() for tensor in weights.values())
    assert section["parameters"] == {"built": count, "rows": count, "padding": 2 * 53 * 72}
    assert "logits" not in found


@pytest.mark.parametrize(
    ("model", "fact", "change"),
    [
        ("llama", "norm epsilon", lambda c: c.update(rms_norm_eps=1e-5)),
        ("llama", "rotary frequencies",
         lambda c: c["rope_parameters"].update(rope_theta=10100.0)),
        ("long", "rotary frequencies", lambda c: c["rope_parameters"].update(factor=8.0)),
        ("long", "rotary frequencies",
         lambda c: c["rope_parameters"].update(original_max_position_embeddings=50)),
        ("long", "rotary frequencies", lambda c: c.update(
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    ],
)  # fmt: skip
def test_it_fails_after_one_field_of_the_config_changed(
    root, tmp_path, model, fact, change
) -> None:
    folder = changed(root, model, tmp_path / "other", change)
    found = verify(folder, root / f"{model}.ckpt")
    assert not found["holds"]
    assert [p for p in found["problems"] if p.startswith(f"{fact}:")], found["problems"]
    # Every tensor is still equal: without the architecture only the file's digest would tell.
    silent = verify(folder, root / f"{model}.ckpt", Proof(architecture=False))
    assert silent["problems"] == ["the file config.json differs"]


def test_it_fails_after_the_tie_changed(root, tmp_path) -> None:
    """Tied in the folder, with the second embedding a true copy; untied in the checkpoint."""
    untied = changed(
        root, "qwen2", tmp_path / "untied", lambda c: c.update(tie_word_embeddings=False)
    )
    weights = load_file(untied / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, untied / "model.safetensors", {"format": "pt"})
    import_hf(untied, tmp_path / "ckpt")
    tied = changed(
        tmp_path, "untied", tmp_path / "tied", lambda c: c.update(tie_word_embeddings=True)
    )
    problems = verify(tied, tmp_path / "ckpt")["problems"]
    assert any(p.startswith("embeddings tied: config.json says true") for p in problems)
    assert any("no row claims the Megatron tensor output_layer.weight" in p for p in problems)


def test_it_fails_after_one_value_or_one_name_changed(root, tmp_path) -> None:
    folder = Path(shutil.copytree(root / "llama", tmp_path / "value"))
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.2.mlp.up_proj.weight"
    flat = weights[name].view(-1)
    flat[7] = torch.nextafter(flat[7], torch.tensor(9.0))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    problems = verify(folder, root / "llama.ckpt")["problems"]
    assert problems == [f"{name} differs from decoder.layers.mlp.linear_fc1.weight[2]"]
    renamed = Path(shutil.copytree(root / "llama", tmp_path / "name"))
    weights = load_file(renamed / "model.safetensors")
    weights["model.layers.2.mlp.upward.weight"] = weights.pop(name)
    save_file(weights, renamed / "model.safetensors", {"format": "pt"})
    problems = verify(renamed, root / "llama.ckpt")["problems"]
    assert len(problems) == 2
    assert any("model.layers.2.mlp.upward.weight" in problem for problem in problems)


def test_a_conversion_that_does_not_hold_is_not_written(root, tmp_path, capsys) -> None:
    """An export in the name of another config: status 1, a sentence, and no folder."""
    other = changed(root, "llama", tmp_path / "other", lambda c: c.update(rms_norm_eps=1e-5))
    arguments = ["export", str(root / "llama.ckpt"), str(tmp_path / "out"), "--like", str(other)]
    assert command.main(arguments) == 1
    told = capsys.readouterr()
    assert "norm epsilon: config.json says 1e-05, the built model has 1e-06" in told.err
    assert "Traceback" not in told.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other"]


def test_verify_writes_where_it_is_told_and_never_into_either_side(root, tmp_path, capsys) -> None:
    sides = [str(root / "llama"), str(root / "llama.ckpt")]
    out = tmp_path / "c.json"
    assert command.main(["verify", *sides, "--out", str(out)]) == 0
    assert json.loads(out.read_text())["holds"]
    assert "25 facts" in capsys.readouterr().out
    for side in sides:
        assert command.main(["verify", *sides, "--out", f"{side}/c.json"]) == 2
        assert "Where: --out" in capsys.readouterr().err
    other = changed(root, "llama", tmp_path / "other", lambda c: c.update(rms_norm_eps=1e-5))
    assert command.main(["verify", str(other), sides[1], "--out", str(out)]) == 1
    told = capsys.readouterr()
    assert told.err.startswith("The certificate does not hold: ")
    assert "norm epsilon: config.json says 1e-05" in told.err
    assert not json.loads(out.read_text())["holds"]


def test_logits_and_loss_are_hugging_faces_and_a_wrong_model_is_seen(root, tmp_path) -> None:
    toy = Path(__file__).parents[2] / "deploy" / "recipes" / "toy"
    folder = Path(shutil.copytree(root / "qwen2", tmp_path / "qwen2"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(toy / name, folder)
    text = tmp_path / "text"
    text.write_text("Anarchism is a political philosophy. " * 30)
    proof = Proof(logits=True, text=text)
    found = import_hf(folder, tmp_path / "ckpt", proof=proof)
    assert json.loads((tmp_path / "ckpt/certificate.json").read_text()) == found
    assert checkpoint.read_info(tmp_path / "ckpt").iteration == 0
    exact = found["logits"]["float32"]
    assert 0 < exact["largest_difference"] < 5e-5
    assert exact["largest_logit"] > 5
    assert exact["argmax_agreement"] == 1.0
    assert abs(found["loss"]["difference"]) < 1e-6
    assert found["loss"]["tokens"] > 300
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.o_proj.weight"][0, 0] += 1e-2
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    wrong = verify(folder, tmp_path / "ckpt", proof)
    assert any(problem.startswith("logits differ") for problem in wrong["problems"])


def test_bfloat16_is_measured_beside_hugging_faces_own(root, tmp_path) -> None:
    found = import_hf(root / "llama", tmp_path / "ckpt", "bfloat16", proof=Proof(logits=True))
    logits = found["logits"]
    assert logits["float32"]["largest_difference"] < 5e-5  # weights rounded on both sides
    gaps = logits["bfloat16"]["gap_to_float32"]
    assert 0 < gaps["megatron"]["mean"] < 1.5 * gaps["hugging_face"]["mean"]


def test_a_model_of_remote_code_says_that_it_has_no_reference(root, tmp_path) -> None:
    folder = changed(root, "llama", tmp_path / "internlm",
                     lambda c: c.update(model_type="internlm", bias=False))  # fmt: skip
    found = import_hf(folder, tmp_path / "ckpt", proof=Proof(logits=True))
    assert found["holds"]
    assert "no class of its own for 'internlm'" in found["logits"]["reason"]
    assert any("logits not compared" in line for line in certificate.lines(found))


def _spec(root: Path, start: Path, run: Path, **more: Any) -> TrainSpec:
    if not (root / "tokens.bin").is_file():
        toys.indexed_dataset(root / "tokens")
    config = TrainConfig(steps=1, sequence_length=30, global_batch_size=1)
    return TrainSpec(config=config, checkpoint=start, train_data=root / "tokens",
                     end_of_document=toys.END_OF_DOCUMENT, run_dir=run, **more)  # fmt: skip


def _without_certificate(root: Path, folder: Path) -> Path:
    """An imported checkpoint whose certificate was never written."""
    shutil.copytree(root / "llama.ckpt", folder)
    (folder / "certificate.json").unlink()
    info = checkpoint.read_info(root / "llama.ckpt")
    kept = info.model_dump(exclude={"format", "files"})
    checkpoint.commit(folder, **kept)
    return folder


def test_train_refuses_a_checkpoint_without_a_certificate_that_holds(root, tmp_path) -> None:
    bare = _without_certificate(root, tmp_path / "bare")
    with pytest.raises(ProofError, match=r"it has no certificate\.json.*--unproven"):
        runs.train(_spec(root, bare, tmp_path / "run"))
    for text, words in (
        ('{"holds": false, "problems": ["x"]}', "does not hold"),
        ('{"holds": true, "proven": true}', "the tensors only"),
        ("{}", "does not hold"),
        ("[", "cannot be read"),
    ):
        (bare / "certificate.json").write_text(text)
        with pytest.raises(ProofError, match=words):
            runs.train(_spec(root, bare, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_unproven_is_carried_on_for_ever(root, tmp_path, capsys) -> None:
    bare = _without_certificate(root, tmp_path / "bare")
    metrics = runs.train(_spec(root, bare, tmp_path / "run", unproven=True))
    assert metrics["proven"] is False
    trained = Path(metrics["checkpoint"])
    assert checkpoint.read_info(trained).proven is False
    with pytest.raises(ProofError, match=r"as its checkpoint\.json says"):
        runs.train(_spec(root, trained, tmp_path / "again"))
    exported = export_hf(trained, tmp_path / "hf")
    assert (exported["holds"], exported["proven"]) == (True, False)
    assert "without proof" in str(certificate.doubt(tmp_path / "hf"))
    # Also when the export is imported again, whose own conversion is proven.
    assert command.main(["import", str(tmp_path / "hf"), str(tmp_path / "ckpt")]) == 0
    assert "UNPROVEN" in capsys.readouterr().out
    assert checkpoint.read_info(tmp_path / "ckpt").proven is False
    with pytest.raises(ProofError, match="without proof"):
        runs.train(_spec(root, tmp_path / "ckpt", tmp_path / "third"))


def test_a_proven_start_stays_proven_whatever_was_allowed(root, tmp_path) -> None:
    metrics = runs.train(_spec(root, root / "llama.ckpt", tmp_path / "run", unproven=True))
    assert metrics["proven"] is True
    assert checkpoint.read_info(Path(metrics["checkpoint"])).proven is True


def test_a_text_that_cannot_be_read_is_told(root, tmp_path, capsys) -> None:
    arguments = ["verify", str(root / "llama"), str(root / "llama.ckpt"), "--text", "nowhere.txt"]
    assert command.main(arguments) == 2
    assert "The text cannot be read" in capsys.readouterr().err
