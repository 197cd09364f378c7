"""Weights in FP8 blocks: against a loop over blocks that knows nothing of ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import family_bench
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from megatron_bridge import certificate, checkpoint, torch_dist
from megatron_bridge.__main__ import main
from megatron_bridge.convert import export_hf, import_hf
from megatron_bridge.errors import ConfigError, InputError
from megatron_bridge.hf import Weights
from megatron_bridge.proof import TENSORS, Proof
from megatron_bridge.sources import source as sources
from megatron_bridge.verify import verify

Tensors = dict[str, torch.Tensor]
BLOCKS = {"small": (16, 20), "published": (128, 128)}
GATE = "model.layers.1.mlp.experts.5.gate_proj.weight"


def blocks_of(shape: tuple[int, ...], size: tuple[int, int]) -> list[tuple[int, int, Any]]:
    """Every block's place among the scales, and its slices."""
    return [
        (a, b, (slice(a * size[0], (a + 1) * size[0]), slice(b * size[1], (b + 1) * size[1])))
        for a in range(-(-shape[0] // size[0]))
        for b in range(-(-shape[1] // size[1]))
    ]


def quantise(weight: torch.Tensor, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """As DeepSeek does it: the largest value of a block becomes 448."""
    places = blocks_of(tuple(weight.shape), size)
    scale = torch.zeros(places[-1][0] + 1, places[-1][1] + 1)
    small = torch.zeros(weight.shape, dtype=torch.float8_e4m3fn)
    for a, b, part in places:
        scale[a, b] = weight[part].float().abs().max() / 448
        small[part] = (weight[part].float() / scale[a, b]).to(torch.float8_e4m3fn)
    return small, scale


def meant(weight: torch.Tensor, scale: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """What such a weight stands for, block by block."""
    whole = torch.zeros(weight.shape)
    for a, b, part in blocks_of(tuple(weight.shape), size):
        whole[part] = weight[part].float() * scale[a, b]
    return whole


def is_quantised(name: str) -> bool:
    """As in the published files: all matrices but embeddings, output layer and routers."""
    return name.endswith("_proj.weight") or "kv_a_proj" in name or "_b_proj" in name


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DeepSeek-V3's toy as it is published, in each size of blocks."""
    root = tmp_path_factory.mktemp("fp8")
    (case,) = (case for case in family_bench.all_cases() if case.name == "deepseek_v3")
    family_bench.save(case, family_bench.build(case), root / "whole")
    tensors = load_file(root / "whole" / "model.safetensors")
    config = json.loads((root / "whole" / "config.json").read_text())
    (root / "whole" / "tokenizer_config.json").write_text('{"a":  1}')
    for name, size in BLOCKS.items():
        written: Tensors = {}
        for key, tensor in tensors.items():
            if is_quantised(key):
                written[key], written[f"{key}_scale_inv"] = quantise(tensor, size)
            else:
                written[key] = tensor if "correction_bias" in key else tensor.bfloat16()
        how = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
               "weight_block_size": list(size)}  # fmt: skip
        more = {"dtype": "bfloat16", "quantization_config": how}
        write(root / name, written, config | more)
        (root / name / "tokenizer_config.json").write_text('{"a":  1}')
    return root


def write(folder: Path, tensors: Tensors, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def read(folder: Path) -> tuple[Tensors, dict[str, Any]]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return load_file(folder / "model.safetensors"), config


def expected(folder: Path, to: torch.dtype) -> Tensors:
    """Every tensor as the folder means it."""
    tensors, config = read(folder)
    size = tuple(config["quantization_config"]["weight_block_size"])
    return {
        name: meant(tensor, tensors[f"{name}_scale_inv"], size).to(to)
        if tensor.dtype == torch.float8_e4m3fn
        else tensor
        for name, tensor in tensors.items()
        if not name.endswith("_scale_inv")
    }


@pytest.mark.parametrize("size", BLOCKS)
@pytest.mark.parametrize("to", ["float32", "bfloat16", None])
def test_every_row_is_what_its_block_means(toy: Path, size: str, to: str | None) -> None:
    wanted = expected(toy / size, getattr(torch, to or "bfloat16"))
    with sources.opened(toy / size, to) as source, Weights(source) as weights:
        assert weights.names == sorted(wanted)
        for name, tensor in wanted.items():
            found = weights.read(name)
            assert found.dtype == tensor.dtype, name
            assert torch.equal(found, tensor), name
            rows = tensor.shape[0]
            part = weights.stored(name).read(rows // 3, rows - 1)
            assert torch.equal(part, tensor[rows // 3 : rows - 1]), name


def test_wrong_readings_are_other_values(toy: Path) -> None:
    tensors, config = read(toy / "small")
    weight, scale = tensors[GATE], tensors[f"{GATE}_scale_inv"]
    size = tuple(config["quantization_config"]["weight_block_size"])
    right = meant(weight, scale, size)
    assert not torch.equal(right, meant(weight, scale.roll(1, 0), size))
    assert not torch.equal(right, meant(weight, scale.roll(1, 1), size))
    assert not torch.equal(right, meant(weight, 1 / scale, size))
    square = tensors["model.layers.0.self_attn.q_b_proj.weight"][:48, :48]
    its = torch.arange(1.0, 7.0).reshape(3, 2)[:2]
    assert not torch.equal(meant(square, its, (24, 24)), meant(square, its.t(), (24, 24)))


def test_a_checkpoint_holds_what_the_blocks_mean_and_says_what_was_lost(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = toy / "small"
    assert main(["import", str(folder), str(tmp_path / "ckpt")]) == 0
    count = sum(is_quantised(name) for name in expected(folder, torch.bfloat16))
    said = capsys.readouterr().out
    assert f"DEQUANTISED: {count} tensors" in said
    assert "cannot be bit for bit the quantised file" in said
    written = json.loads((tmp_path / "ckpt" / "certificate.json").read_text())
    how = "float8_e4m3fn with a scale for 16 x 20"
    lost = {"formats": {how: count}, "tensors": count, "to": ["bfloat16"]}
    assert written["dequantised"] == lost
    assert not written["dtype"]["cast"]
    mark = checkpoint.read_info(tmp_path / "ckpt")
    assert mark.dequantised is not None
    assert mark.dequantised.model_dump(mode="json") == lost
    assert verify(folder, tmp_path / "ckpt", TENSORS)["holds"]
    wanted = expected(folder, torch.bfloat16)
    with torch_dist.Reader(tmp_path / "ckpt") as reader:
        down = reader.read("decoder.layers.1.mlp.experts.experts.linear_fc2.weight", (5,))
        assert torch.equal(down, wanted["model.layers.1.mlp.experts.5.down_proj.weight"])

    exported = export_hf(tmp_path / "ckpt", tmp_path / "back", proof=TENSORS)
    assert any(f"DEQUANTISED: {count} tensors" in line for line in certificate.lines(exported))
    back, config = read(tmp_path / "back")
    assert back.keys() == wanted.keys()
    assert all(torch.equal(back[name], wanted[name]) for name in wanted)
    _, original = read(folder)
    assert config == {k: v for k, v in original.items() if k != "quantization_config"}
    carried = (tmp_path / "back" / "tokenizer_config.json").read_bytes()
    assert carried == (folder / "tokenizer_config.json").read_bytes()
    found = verify(tmp_path / "back", tmp_path / "ckpt", TENSORS)
    assert found["holds"]
    assert any(line.startswith("DEQUANTISED") for line in certificate.lines(found))


def test_in_float32_nothing_is_rounded_and_logits_are_those_of_the_dequantised_model(
    toy: Path, tmp_path: Path
) -> None:
    folder = toy / "published"
    import_hf(folder, tmp_path / "ckpt", "float32", proof=TENSORS)
    assert verify(folder, tmp_path / "ckpt", TENSORS)["holds"]
    export_hf(tmp_path / "ckpt", tmp_path / "back", proof=TENSORS)
    back, _ = read(tmp_path / "back")
    wanted = {name: t.float() for name, t in expected(folder, torch.float32).items()}
    assert all(torch.equal(back[name], wanted[name]) for name in wanted)
    rounded = expected(folder, torch.bfloat16)
    assert not all(torch.equal(back[name], rounded[name].float()) for name in wanted)

    _, config = read(folder)
    del config["quantization_config"]
    write(tmp_path / "direct", wanted, config)
    ids = torch.arange(40).reshape(2, 20) * 8
    logits = [
        transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)(ids).logits
        for path in (tmp_path / "back", tmp_path / "direct", toy / "whole")
    ]
    assert torch.equal(logits[0], logits[1])
    assert 0.01 < (logits[0] - logits[2]).abs().max() < 10


def test_a_cast_checkpoint_is_verified_in_its_own_number_format(toy: Path, tmp_path: Path) -> None:
    import_hf(toy / "small", tmp_path / "ckpt", "float32", proof=TENSORS)
    tensors, config = read(toy / "small")
    tensors[f"{GATE}_scale_inv"][0, 0] *= 1 + 2**-20
    other = write(tmp_path / "other", tensors, config)
    found = verify(other, tmp_path / "ckpt", TENSORS)
    assert [p for p in found["problems"] if GATE in p]


def test_transformers_is_not_asked_for_logits_of_quantised_weights(
    toy: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="cannot be run on these weights"):
        import_hf(toy / "small", tmp_path / "ckpt", proof=Proof(logits=True))
    assert not (tmp_path / "ckpt").exists()


def test_a_killed_import_goes_on_from_another_scratch_folder(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import megatron_bridge.convert as convert

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(convert, "certify", die)
        with pytest.raises(KeyboardInterrupt):
            import_hf(toy / "small", tmp_path / "ckpt", proof=TENSORS)
    calls: list[str] = []
    monkeypatch.setattr(
        "megatron_bridge.transfer.write_checkpoint", lambda *_: calls.append("again")
    )
    assert import_hf(toy / "small", tmp_path / "ckpt", proof=TENSORS)["holds"]
    assert not calls


def test_at_a_url_it_is_the_same(toy: Path, tmp_path: Path, served: Any) -> None:
    folder = Path(shutil.copytree(toy / "small", served.folder / "fp8"))
    local = import_hf(folder, tmp_path / "local", proof=TENSORS)
    found = import_hf(f"{served.url}/fp8", tmp_path / "out", proof=TENSORS)
    # A byte more shows that the weights are there.
    assert found.pop("source")["bytes_fetched"] == served.total - 1
    assert found == local
    # Each value was read once; the header, which each opening reads, is a part of a toy's file.
    whole = (folder / "model.safetensors").read_bytes()
    header = int.from_bytes(whole[:8], "little")
    assert served.total < len(whole) + 5 * header < 1.5 * len(whole)
    assert verify(f"{served.url}/fp8", tmp_path / "out", TENSORS)["holds"]


def no_scale(tensors: Tensors, config: dict[str, Any]) -> None:
    del tensors[f"{GATE}_scale_inv"]


def no_weight(tensors: Tensors, config: dict[str, Any]) -> None:
    del tensors[GATE]


def transposed_scale(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors[f"{GATE}_scale_inv"] = tensors[f"{GATE}_scale_inv"].t().contiguous()


def scale_of_integers(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors[f"{GATE}_scale_inv"] = tensors[f"{GATE}_scale_inv"].int()


def other_blocks(tensors: Tensors, config: dict[str, Any]) -> None:
    config["quantization_config"]["weight_block_size"] = [16, 16]


def absurd_blocks(tensors: Tensors, config: dict[str, Any]) -> None:
    config["quantization_config"]["weight_block_size"] = [0, 2**80]


def one_scale_a_tensor(tensors: Tensors, config: dict[str, Any]) -> None:
    del config["quantization_config"]["weight_block_size"]


def gptq(tensors: Tensors, config: dict[str, Any]) -> None:
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}


def a_word(tensors: Tensors, config: dict[str, Any]) -> None:
    config["quantization_config"] = "awq"


def no_entry(tensors: Tensors, config: dict[str, Any]) -> None:
    del config["quantization_config"]


def other_bits(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors[GATE] = tensors[GATE].float().to(torch.float8_e5m2)


def unknown_dtype(tensors: Tensors, config: dict[str, Any]) -> None:
    config["dtype"] = "float8_e4m3fn"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (no_scale, f"{GATE} in float8_e4m3fn, and no scale"),
        (no_weight, "the scale alone"),
        (transposed_scale, f"{GATE}_scale_inv: .3, 4. in float32"),
        (scale_of_integers, "in int32"),
        (other_blocks, "_scale_inv: .*in float32 or bfloat16 for"),
        (absurd_blocks, "in a way that is not supported"),
        (one_scale_a_tensor, "in a way that is not supported"),
        (gptq, '"gptq"'),
        (a_word, '"awq"'),
        (no_entry, "in a way that is not supported"),
        (other_bits, "float8_e5m2"),
        (unknown_dtype, "cannot become"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_does_not_belong_together_is_refused_by_name(
    toy: Path, tmp_path: Path, change: Any, words: str
) -> None:
    tensors, config = read(toy / "small")
    change(tensors, config)
    with pytest.raises(InputError, match=words):
        import_hf(write(tmp_path / "hf", tensors, config), tmp_path / "ckpt", proof=TENSORS)
    assert not (tmp_path / "ckpt").exists()


def test_scales_in_bfloat16_are_taken_as_they_are(toy: Path, tmp_path: Path) -> None:
    """As Qwen3's FP8 files hold them."""
    tensors, config = read(toy / "small")
    scales = {n: t.bfloat16() for n, t in tensors.items() if n.endswith("_scale_inv")}
    folder = write(tmp_path / "hf", tensors | scales, config)
    wanted = expected(folder, torch.float32)
    with sources.opened(folder, "float32") as source, Weights(source) as weights:
        assert torch.equal(weights.read(GATE), wanted[GATE])


def test_checkpoints_of_before_are_read(toy: Path, tmp_path: Path) -> None:
    import_hf(toy / "whole", tmp_path / "ckpt", proof=TENSORS)
    mark = tmp_path / "ckpt" / "checkpoint.json"
    told = json.loads(mark.read_text())
    assert (told["vocab_size"], told["padded_vocab_size"], told["vocab_divisor"]) == (331, 384, 128)
    assert told["dequantised"] is None
    older = {k: v for k, v in told.items() if k not in ("vocab_divisor", "dequantised")}
    mark.write_text(json.dumps(older))
    found = verify(toy / "whole", tmp_path / "ckpt", TENSORS)
    assert found["vocabulary"] == {"true": 331, "padded": 384, "divisor": 128}
    assert "dequantised" not in found
