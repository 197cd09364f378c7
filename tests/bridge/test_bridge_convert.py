"""There and back, bit for bit, read by libraries that are not ours; and what must be refused."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
import toys
from safetensors.torch import load_file, save_file

from megatron_bridge import __main__ as command
from megatron_bridge import hf, index_file
from megatron_bridge.convert import export_hf, import_hf
from megatron_bridge.errors import ConfigError, InputError, MappingError
from megatron_bridge.proof import TENSORS
from megatron_bridge.sources.stored import raw
from megatron_bridge.verify import verify

FAMILIES = ["llama", "qwen2", "qwen3"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """A toy folder a family, written by transformers, and beside it `NAME.ckpt`."""
    root = tmp_path_factory.mktemp("models")
    for kind in FAMILIES:
        toys.hf_model(kind, root / kind)
        (root / kind / "tokenizer_config.json").write_text('{"chat_template": "x"}')
        (root / kind / "LICENSE").write_text("text")
        import_hf(root / kind, root / f"{kind}.ckpt", proof=TENSORS)
    return {kind: root / kind for kind in FAMILIES}


@pytest.fixture
def llama(models, tmp_path) -> Path:
    """A copy of the toy llama that a test may damage."""
    return Path(shutil.copytree(models["llama"], tmp_path / "llama"))


def ckpt(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.ckpt")


@pytest.mark.parametrize("kind", FAMILIES)
def test_there_and_back_gives_the_same_files(models, tmp_path, kind) -> None:
    certificate = export_hf(ckpt(models[kind]), tmp_path / "back", proof=TENSORS)
    assert certificate["holds"]
    for path in models[kind].iterdir():  # the weights file too: same header, same order
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes(), path.name


def test_torchs_own_reader_finds_the_tensors(models) -> None:
    """The checkpoint read by torch.distributed.checkpoint, compared with the safetensors file."""
    from torch.distributed.checkpoint import FileSystemReader, load

    source = load_file(models["llama"] / "model.safetensors")
    gate_up = "decoder.layers.mlp.linear_fc1.weight"
    state = {gate_up: torch.empty(4, 184, 72), "output_layer.weight": torch.empty(384, 72)}
    with pytest.warns(UserWarning, match="single process"):
        load(state, storage_reader=FileSystemReader(ckpt(models["llama"])))
    for layer in range(4):
        for half, name in zip(state[gate_up][layer].chunk(2), ("gate", "up"), strict=True):
            assert torch.equal(half, source[f"model.layers.{layer}.mlp.{name}_proj.weight"])
    assert torch.equal(state["output_layer.weight"][:331], source["lm_head.weight"])
    assert not state["output_layer.weight"][331:].any()


def test_bfloat16_there_and_back(llama, tmp_path) -> None:
    path = llama / "model.safetensors"
    halves = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
    save_file(halves, path, {"format": "pt"})
    config = json.loads((llama / "config.json").read_text()) | {"dtype": "bfloat16"}
    (llama / "config.json").write_text(json.dumps(config))
    import_hf(llama, tmp_path / "ckpt", proof=TENSORS)
    export_hf(tmp_path / "ckpt", tmp_path / "back", proof=TENSORS)
    assert (tmp_path / "back/model.safetensors").read_bytes() == path.read_bytes()
    assert (tmp_path / "back/config.json").read_bytes() == (llama / "config.json").read_bytes()


def test_a_cast_is_named_and_equals_torchs(models, tmp_path) -> None:
    certificate = import_hf(models["qwen3"], tmp_path / "ckpt", dtype="bfloat16", proof=TENSORS)
    assert certificate["dtype"]["cast"]
    export_hf(tmp_path / "ckpt", tmp_path / "back", proof=TENSORS)
    source = load_file(models["qwen3"] / "model.safetensors")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert all(torch.equal(back[name], source[name].bfloat16()) for name in source)
    assert json.loads((tmp_path / "back/config.json").read_text())["dtype"] == "bfloat16"


def test_sharded_weights_are_read_and_written(models, tmp_path) -> None:
    source = load_file(models["llama"] / "model.safetensors")
    specs = [hf.TensorSpec(name, t.dtype, tuple(t.shape)) for name, t in source.items()]
    (tmp_path / "sharded").mkdir()
    places = hf.prepare(tmp_path / "sharded", specs, shard_bytes=200_000)
    for name, tensor in source.items():
        with (tmp_path / "sharded" / places[name].file).open("r+b") as file:
            hf.write_at(file.fileno(), places[name].offset, raw(tensor.contiguous()))
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 3
    for path in hf.carried_files(models["llama"]):
        shutil.copy(path, tmp_path / "sharded")
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "sharded")
    assert all(torch.equal(p, source[name]) for name, p in model.named_parameters())
    import_hf(tmp_path / "sharded", tmp_path / "ckpt", proof=TENSORS)
    assert verify(models["llama"], tmp_path / "ckpt", proof=TENSORS)["holds"]


@pytest.mark.parametrize("kind", FAMILIES)
def test_verify_holds_and_fails_when_any_one_value_changes(models, tmp_path, kind, capsys) -> None:
    assert command.main(["verify", str(models[kind]), str(ckpt(models[kind]))]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    source = load_file(models[kind] / "model.safetensors")
    for name in list(source)[:: max(1, len(source) // 5)]:
        changed = {key: tensor.clone() for key, tensor in source.items()}
        flat = changed[name].view(-1)
        flat[-1] = torch.nextafter(flat[-1], torch.tensor(9e9))
        folder = Path(shutil.copytree(models[kind], tmp_path / name))
        save_file(changed, folder / "model.safetensors", {"format": "pt"})
        assert command.main(["verify", str(folder), str(ckpt(models[kind]))]) == 1
        problems = json.loads(capsys.readouterr().out)["problems"]
        assert len(problems) == 1
        assert problems[0].startswith(f"{name} differs")


def test_verify_notices_one_flipped_bit_in_the_checkpoint(models, tmp_path) -> None:
    folder = Path(shutil.copytree(ckpt(models["llama"]), tmp_path / "ckpt"))
    data = bytearray((folder / "__0_0.distcp").read_bytes())
    value = load_file(models["llama"] / "model.safetensors")["model.norm.weight"]
    at = bytes(data).index(value.numpy().tobytes())
    data[at] ^= 1
    (folder / "__0_0.distcp").write_bytes(data)
    certificate = verify(models["llama"], folder, proof=TENSORS)
    assert certificate["problems"] == [
        "model.norm.weight differs from decoder.final_layernorm.weight"
    ]


def test_verify_notices_a_changed_tokenizer(llama, models) -> None:
    (llama / "tokenizer_config.json").write_text("{}")
    assert not verify(llama, ckpt(models["llama"]), proof=TENSORS)["holds"]


def test_a_surplus_and_a_missing_tensor_leave_nothing_behind(llama, tmp_path) -> None:
    path = llama / "model.safetensors"
    source = load_file(path)
    save_file({**source, "model.layers.0.mlp.bias": torch.zeros(3)}, path)
    with pytest.raises(MappingError, match=r"model\.layers\.0\.mlp\.bias"):
        import_hf(llama, tmp_path / "ckpt", proof=TENSORS)
    save_file({name: t for name, t in source.items() if name != "model.norm.weight"}, path)
    with pytest.raises(MappingError, match=r"the model has no tensor model\.norm\.weight"):
        import_hf(llama, tmp_path / "ckpt", proof=TENSORS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama"]


def test_a_tied_models_second_embedding_must_be_a_copy(models, tmp_path) -> None:
    folder = Path(shutil.copytree(models["qwen2"], tmp_path / "qwen2"))
    source = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in source
    source["lm_head.weight"] = source["model.embed_tokens.weight"].clone()
    save_file(source, folder / "model.safetensors")
    certificate = import_hf(folder, tmp_path / "ckpt", proof=TENSORS)
    assert certificate["coverage"]["tied_copies_left_out"] == ["lm_head.weight"]
    source["lm_head.weight"][0, 0] += 1
    save_file(source, folder / "model.safetensors")
    with pytest.raises(MappingError, match="tied"):
        import_hf(folder, tmp_path / "other", proof=TENSORS)


def test_a_folder_with_files_is_never_written_over(models, tmp_path) -> None:
    (tmp_path / "kept").write_text("mine")
    for convert, source in ((import_hf, models["llama"]), (export_hf, ckpt(models["llama"]))):
        with pytest.raises(ConfigError, match="not empty"):
            convert(source, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_checkpoint_without_its_mark_or_with_a_short_file_is_none(models, tmp_path) -> None:
    folder = Path(shutil.copytree(ckpt(models["llama"]), tmp_path / "ckpt"))
    data = (folder / "__0_0.distcp").read_bytes()
    (folder / "__0_0.distcp").write_bytes(data[:-1])
    with pytest.raises(InputError, match="damaged"):
        export_hf(folder, tmp_path / "back", proof=TENSORS)
    (folder / "__0_0.distcp").write_bytes(data)
    (folder / "checkpoint.json").unlink()
    with pytest.raises(InputError, match="not a finished checkpoint"):
        export_hf(folder, tmp_path / "back", proof=TENSORS)
    assert not (tmp_path / "back").exists()


class Payload:
    """Runs code when a bare pickle loads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_that_runs_code_is_refused_and_does_not_run(models, tmp_path) -> None:
    folder = Path(shutil.copytree(ckpt(models["llama"]), tmp_path / "ckpt"))
    victim = tmp_path / "victim"
    payload = pickle.dumps(Payload(victim))
    pickle.loads(payload)
    assert victim.exists()  # the control: a bare load runs it
    victim.unlink()
    (folder / ".metadata").write_bytes(payload)
    for call in (
        index_file.read,
        lambda f: export_hf(f, tmp_path / "back", proof=TENSORS),
    ):
        with pytest.raises(InputError):
            call(folder)
    assert not victim.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["import", "nowhere", "out"], 2, "no such folder"),
        (["export", "nowhere", "out"], 2, "not a finished checkpoint"),
        (["verify", "nowhere", "nowhere"], 2, "not a finished checkpoint"),
        (["logits", "nowhere", "--tokens", "no.json", "--out", "x"], 2, "No such file"),
        (["train", "c", "--data", "d", "--end-of-document", "0", "--out", "o",
          "--set", "stepz=3"], 2,
         "stepz"),
    ],
)  # fmt: skip
def test_bad_input_is_told_in_one_paragraph(
    arguments, status, words, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(arguments) == status
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []
