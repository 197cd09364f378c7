"""`export --as native`: what only remote code defines, written as transformers' own class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import family_bench
import pytest
import torch
import transformers
from safetensors.torch import load_file

from megatron_bridge import families
from megatron_bridge.__main__ import main
from megatron_bridge.convert import export_hf, import_hf
from megatron_bridge.errors import ConfigError
from megatron_bridge.options import Options
from megatron_bridge.proof import TENSORS

CASES = {case.name: case for case in family_bench.all_cases()}
NATIVE = {
    "chatglm": "GlmForCausalLM",
    "qwen": "Qwen2ForCausalLM",
    "baichuan, 7B": "LlamaForCausalLM",
    "baichuan2, 7B": "LlamaForCausalLM",
    "internlm": "LlamaForCausalLM",
}
TOKENS = torch.arange(36).reshape(2, 18) * 9 % 331


def checkpoint(name: str, folder: Path) -> Any:
    """Import the case's model, with a tokenizer of remote code; return the reference."""
    model = family_bench.build(CASES[name])
    family_bench.save(CASES[name], model, folder / "hf")
    (folder / "hf" / "tokenization_own.py").write_text("raise SystemExit('never run')\n")
    import_hf(folder / "hf", folder / "checkpoint", proof=TENSORS)
    return model


@pytest.mark.parametrize("name", NATIVE)
def test_the_native_class_computes_the_same_from_the_same_values(name: str, tmp_path: Path) -> None:
    reference = checkpoint(name, tmp_path)
    certificate = export_hf(
        tmp_path / "checkpoint", tmp_path / "native", form="native", proof=TENSORS
    )
    reference.save_pretrained(tmp_path / "reference")
    ours = load_file(tmp_path / "native" / "model.safetensors")
    theirs = load_file(tmp_path / "reference" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    changed = {key for key, tensor in theirs.items() if not torch.equal(tensor, ours[key])}
    assert changed == ({"lm_head.weight"} if name == "baichuan2, 7B" else set())
    assert certificate["inverse"]["rows_normalised_to_length_1"] == sorted(changed)

    native = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "native", attn_implementation="eager"
    )
    assert type(native).__name__ == NATIVE[name]
    with torch.no_grad():
        assert (native(TOKENS).logits - reference(TOKENS).logits).abs().max() < 5e-5
    carried = tmp_path / "native" / "tokenization_own.py"
    assert carried.read_bytes() == (tmp_path / "hf" / "tokenization_own.py").read_bytes()


@pytest.mark.parametrize("name", NATIVE)
def test_the_native_config_means_the_same_to_megatron(name: str) -> None:
    family = families.get(CASES[name].config["model_type"])
    assert family.native is not None
    native, config = family.native(CASES[name].config)
    unsaid = vars(Options()) | {"add_qkv_bias": False}
    before = unsaid | family.megatron_config(CASES[name].config)
    after = unsaid | native.megatron_config(config)
    assert before.pop("normalized_output") == (name == "baichuan2, 7B")
    assert after.pop("normalized_output") is False
    assert before == after


def test_a_model_with_a_class_of_its_own_is_written_as_it_is(tmp_path: Path) -> None:
    checkpoint("llama", tmp_path)
    for form in ("original", "native"):
        assert main(["export", *map(str, (tmp_path / "checkpoint", tmp_path / form)), "--as", form]
                    ) == 0  # fmt: skip
    for path in (tmp_path / "original").iterdir():
        if path.name != "certificate.json":
            assert path.read_bytes() == (tmp_path / "native" / path.name).read_bytes()


def test_baichuan_13b_has_no_native_class(tmp_path: Path) -> None:
    checkpoint("baichuan, 13B", tmp_path)
    with pytest.raises(ConfigError, match="13B has no native class"):
        export_hf(tmp_path / "checkpoint", tmp_path / "native", form="native", proof=TENSORS)
    assert not (tmp_path / "native").exists()


def test_the_command_tells_of_the_changed_tensor(tmp_path: Path, capsys: Any) -> None:
    checkpoint("baichuan2, 7B", tmp_path)
    paths = [str(tmp_path / "checkpoint"), str(tmp_path / "native")]
    assert main(["export", *paths, "--as", "native", "--dtype", "bfloat16"]) == 0
    assert "lm_head.weight, its rows normalised to length 1" in capsys.readouterr().out
    written = json.loads((tmp_path / "native" / "config.json").read_text())
    assert (written["model_type"], written["dtype"]) == ("llama", "bfloat16")
    head = load_file(tmp_path / "native" / "model.safetensors")["lm_head.weight"]
    assert (head.float().norm(dim=-1) - 1).abs().max() < 4e-3
