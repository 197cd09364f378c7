"""Checkpoints that Megatron-LM wrote, exported: transformers answers as Megatron's model did."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatron_bridge import __main__ as command
from megatron_bridge import certificate, inspection
from megatron_bridge.convert import export_hf, import_hf
from megatron_bridge.errors import ConfigError, InputError
from megatron_bridge.megatron_lm import origin
from megatron_bridge.megatron_lm.folder import open_run
from megatron_bridge.megatron_lm.sides import Given
from megatron_bridge.proof import TENSORS, Proof

DATA = Path(__file__).parents[1] / "data" / "megatron_lm"
RUNS = sorted(path.parent.name for path in DATA.glob("*/latest_checkpointed_iteration.txt"))
ANSWERED = [name for name in RUNS if (DATA / name / "logits.safetensors").exists()]
VOCAB = 101


def logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        found: torch.Tensor = model(tokens).logits
    return found


def distance(folder: Path, run: str) -> float:
    """Between transformers' answer and Megatron-LM's own."""
    answer = load_file(DATA / run / "logits.safetensors")
    return float((logits(folder, answer["tokens"]) - answer["logits"]).abs().max())


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def export(run: str) -> Path:
        if run not in made:
            made[run] = tmp_path_factory.mktemp("exported") / run
            export_hf(DATA / run, made[run], proof=TENSORS)
        return made[run]

    return export


def test_every_kind_is_frozen() -> None:
    assert {"dense-torch", "dense-torch_dist", "experts-torch", "experts-torch_dist"} <= set(RUNS)
    assert len(ANSWERED) >= 7


@pytest.mark.parametrize("run", ANSWERED)
def test_transformers_answers_as_megatron_did(run: str, exported: Callable[[str], Path]) -> None:
    assert distance(exported(run), run) < 5e-5
    config = json.loads((exported(run) / "config.json").read_text())
    assert config["vocab_size"] == VOCAB
    weights = load_file(exported(run) / "model.safetensors")
    assert len(weights["model.embed_tokens.weight"]) == VOCAB


def _other_base(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "rope_theta": config["rope_theta"] * 1.5}))


def _rewritten(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        weights = load_file(path)
        change(weights)
        save_file(weights, path, {"format": "pt"})

    return apply


def _swap(one: str, other: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def swap(weights: dict[str, torch.Tensor]) -> None:
        for name in [name for name in weights if one in name]:
            twin = name.replace(one, other)
            weights[name], weights[twin] = weights[twin].clone(), weights[name].clone()

    return swap


def _nudge(weights: dict[str, torch.Tensor]) -> None:
    weights["model.layers.1.self_attn.v_proj.weight"][0, 0] += 1e-2


CONTROLS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "rotary base by half more": ("dense-torch", _other_base),
    "gate and up swapped": ("dense-torch", _rewritten(_swap("gate_proj", "up_proj"))),
    "key and value swapped": ("dense-torch_dist", _rewritten(_swap("k_proj", "v_proj"))),
    "one weight by 1e-2": ("chunks-torch", _rewritten(_nudge)),
    "two layers swapped": ("chunks-torch", _rewritten(_swap("layers.1.", "layers.2."))),
    "two experts swapped": ("experts-torch", _rewritten(_swap("experts.1.", "experts.2."))),
    "experts' gate and up": ("experts-torch_dist", _rewritten(_swap(".w1.", ".w3."))),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_a_wrong_export_would_be_seen(
    control: str, exported: Callable[[str], Path], tmp_path: Path
) -> None:
    run, spoil = CONTROLS[control]
    shutil.copytree(exported(run), tmp_path / "wrong")
    spoil(tmp_path / "wrong")
    assert distance(tmp_path / "wrong", run) > 5e-4


def test_both_formats_and_all_layouts_give_the_same_weights(
    exported: Callable[[str], Path],
) -> None:
    for one, other in (
        ("dense-torch", "dense-torch_dist"),
        ("experts-torch", "experts-torch_dist"),
    ):
        left, right = (load_file(exported(run) / "model.safetensors") for run in (one, other))
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_the_certificate_says_where_the_proof_began(tmp_path: Path) -> None:
    found = export_hf(DATA / "dense-torch", tmp_path / "out")
    assert found["holds"]
    assert found["proven"]
    assert found["architecture"]["compared"]["layers"] == 2
    assert found["vocabulary"] == {"true": VOCAB, "padded": 112, "divisor": 16}
    assert found["origin"]["format"] == "torch"
    assert found["origin"]["iteration"] == 3
    assert found["origin"]["tokenizer"] is None
    told = "\n".join(certificate.lines(found))
    assert "NO TOKENIZER" in told
    assert "made from the arguments, as llama" in told
    assert certificate.doubt(tmp_path / "out") is None


@pytest.mark.slow
def test_what_was_exported_comes_back_in(exported: Callable[[str], Path], tmp_path: Path) -> None:
    """And our Megatron answers as Hugging Face does."""
    again = import_hf(exported("experts-torch"), tmp_path / "ours", proof=Proof(logits=True))
    assert again["holds"]
    assert again["logits"]["float32"]["largest_difference"] < 5e-5


def _common(arguments: dict[str, Any]) -> Callable[..., Any]:
    """A run's arguments changed, as `open_run` returns them."""
    real = open_run

    def opened(folder: Path) -> Any:
        run = real(folder)
        changed = {**run.arguments, **arguments}
        kept = {name: value for name, value in changed.items() if value is not ...}
        return type(run)(run.folder, run.format, run.iteration, kept)

    return opened


def tokenizer(folder: Path, size: int = VOCAB) -> Path:
    """A tokenizer of so many tokens, the last two of which are special."""
    folder.mkdir(parents=True, exist_ok=True)
    words = {f"w{n}": n for n in range(size - 2)}
    special = [{"id": size - 2, "content": "<s>"}, {"id": size - 1, "content": "</s>"}]
    whole = {"model": {"type": "WordLevel", "vocab": words}, "added_tokens": special}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ x }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "notes.txt").write_text("not the tokenizer's")
    return folder


def test_a_tokenizer_gives_the_vocabulary_and_comes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin, "open_run", _common({"vocab_size": None}))
    given = Given(tokenizer=tokenizer(tmp_path / "tokenizer"))
    found = export_hf(DATA / "dense-torch", tmp_path / "out", proof=TENSORS, given=given)
    assert found["vocabulary"]["true"] == VOCAB
    assert "tokenizer" in found["origin"]["vocabulary"]["from"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "model.safetensors", "certificate.json",
    }  # fmt: skip
    special = {"bos_token_id": VOCAB - 2, "eos_token_id": VOCAB - 1}
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == special
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert special.items() <= config.items()
    assert distance(tmp_path / "out", "dense-torch") < 5e-5


def test_the_runs_own_tokenizer_is_found_on_this_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tokenizer(tmp_path / "tokenizer")
    monkeypatch.setattr(origin, "open_run", _common({"tokenizer_model": str(place)}))
    found = export_hf(DATA / "dense-torch", tmp_path / "out", proof=TENSORS)
    assert "named by the run's arguments" in found["origin"]["tokenizer"]
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert not (tmp_path / "out" / "notes.txt").exists()


REFUSED: dict[str, tuple[dict[str, Any], Given, str]] = {
    "unknown vocabulary": ({"vocab_size": None}, Given(), r"number of tokens.*--vocab-size N"),
    "too large": ({"vocab_size": None}, Given(vocab_size=113), "97 to 112 tokens.*113 tokens"),
    "too small": ({"vocab_size": None}, Given(vocab_size=96), "97 to 112 tokens.*96 tokens"),
    "a token too few": ({}, Given(vocab_size=100), "101 to 112 .*arguments say 101.*100 tokens"),
    "wrong family": ({}, Given(model_type="qwen3"), "qwen3 does not compute.*qk_layernorm"),
    "dense": ({}, Given(model_type="mixtral"), "Expected: llama or mistral. Got: .*run is dense"),
    "no arguments": ({"hidden_size": None}, Given(), "do not say hidden_size"),
    "no family": ({"squared_relu": True}, Given(), "squared_relu"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, given, words = REFUSED[case]
    monkeypatch.setattr(origin, "open_run", _common(changed))
    with pytest.raises((ConfigError, InputError), match=words):
        export_hf(DATA / "dense-torch", tmp_path / "out", proof=TENSORS, given=given)
    assert not (tmp_path / "out").exists()


def test_a_run_is_not_run_here(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--logits"):
        export_hf(DATA / "dense-torch", tmp_path / "out", proof=Proof(logits=True))


def test_like_is_compared_with_the_arguments(
    tmp_path: Path, exported: Callable[[str], Path]
) -> None:
    like = tokenizer(tmp_path / "like")
    config = json.loads((exported("dense-torch") / "config.json").read_text())
    (like / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 9999}))
    (like / "LICENSE").write_text("mine")
    found = export_hf(DATA / "dense-torch", tmp_path / "out", like, proof=TENSORS)
    assert "compared with the arguments" in found["origin"]["config"]
    assert (tmp_path / "out" / "LICENSE").read_text() == "mine"
    assert (tmp_path / "out" / "config.json").read_bytes() == (like / "config.json").read_bytes()
    for name, value in (("rope_theta", 10000.0), ("rms_norm_eps", 1e-5), ("head_dim", 8)):
        (like / "config.json").write_text(json.dumps({**config, name: value}))
        with pytest.raises(ConfigError, match=r"does not describe this run.*in llama"):
            export_hf(DATA / "dense-torch", tmp_path / "no", like, proof=TENSORS)
    (like / "config.json").write_text(json.dumps({**config, "vocab_size": None}))
    with pytest.raises(ConfigError, match="no vocab_size"):
        export_hf(DATA / "dense-torch", tmp_path / "no", like, proof=TENSORS)
    (like / "config.json").write_text(json.dumps({**config, "vocab_size": 300}))
    with pytest.raises(ConfigError, match="300 tokens"):
        export_hf(DATA / "dense-torch", tmp_path / "no", like, proof=TENSORS)
    export_hf(
        DATA / "dense-torch", tmp_path / "cut", like, proof=TENSORS, given=Given(vocab_size=VOCAB)
    )
    assert distance(tmp_path / "cut", "dense-torch") < 5e-5


def test_without_arguments_a_config_is_needed_and_nothing_is_proven(
    tmp_path: Path, exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    like, real = exported("dense-torch_dist"), open_run
    monkeypatch.setattr(
        origin, "open_run", lambda f: type(r := real(f))(r.folder, r.format, r.iteration, {})
    )
    with pytest.raises(InputError, match="holds no arguments"):
        export_hf(DATA / "dense-torch_dist", tmp_path / "out", proof=TENSORS)
    found = export_hf(DATA / "dense-torch_dist", tmp_path / "out", like, proof=TENSORS)
    assert found["proven"] is False
    assert "no arguments to compare it with" in found["origin"]["config"]
    assert distance(tmp_path / "out", "dense-torch_dist") < 5e-5


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(DATA / "dense-torch")
    assert command.main(["inspect", run, "--tensors"]) == 0
    told = capsys.readouterr().out
    for words in (
        "torch, by Megatron-LM", "tensor_parallel 2, pipeline_parallel 2", "llama",
        "true 101, padded 112, divisor 16", "exp_avg, exp_avg_sq", "--tokenizer DIR",
        "decoder.layers.mlp.linear_fc1.weight  float32  2x56x24",
    ):  # fmt: skip
        assert words in told
    place = str(tokenizer(tmp_path / "tokenizer"))
    out = str(tmp_path / "out")
    assert command.main(["export", run, out, "--tokenizer", place, "--vocab-size", "101"]) == 0
    assert f"tokenizer: {place}, given" in capsys.readouterr().out
    assert command.main(["inspect", out, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "Hugging Face"
    assert report["family"] == "llama"
    assert report["missing"] == []
    assert command.main(["export", run, str(tmp_path / "no"), "--vocab-size", "7"]) == 2
    assert "The vocabulary does not fit the checkpoint." in capsys.readouterr().err


def test_reshard_and_export_of_what_it_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["reshard", str(DATA / "tied-torch"), str(tmp_path / "new")]) == 0
    told = capsys.readouterr().out
    assert "iteration 3: " in told
    assert "left out: " in told
    assert "read back and equal bit by bit: " in told
    assert "holds no optimizer" in told
    assert "padded to a multiple of 16: keep --make-vocab-size-divisible-by" in told
    found = export_hf(tmp_path / "new", tmp_path / "out", proof=TENSORS)
    assert found["origin"]["format"] == "torch_dist"
    assert distance(tmp_path / "out", "tied-torch") < 5e-5


def test_the_same_model_is_counted_the_same_everywhere(
    tmp_path: Path, exported: Callable[[str], Path]
) -> None:
    for run in ("experts-torch", "experts-torch_dist", "tied-torch"):
        if run not in RUNS:
            continue
        ours = tmp_path / run
        import_hf(exported(run), ours, proof=TENSORS)
        reports = [inspection.inspect(place) for place in (DATA / run, exported(run), ours)]
        assert len({report["parameters"] for report in reports}) == 1
        assert len({report["family"] for report in reports}) == 1
        assert {report["vocabulary"]["true"] for report in reports} == {VOCAB}
        assert reports[2]["proof"].startswith("unproven")


def test_ours_takes_nothing_of_a_runs(tmp_path: Path, exported: Callable[[str], Path]) -> None:
    import_hf(exported("dense-torch"), tmp_path / "ours", proof=TENSORS)
    with pytest.raises(ConfigError, match="config and tokenizer beside it"):
        export_hf(tmp_path / "ours", tmp_path / "out", given=Given(vocab_size=VOCAB))
