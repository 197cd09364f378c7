"""What families read from config.json, against transformers' own reading of it."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from megatron_bridge import families
from megatron_bridge.errors import ConfigError, InputError
from megatron_bridge.mapping import Slot, check

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 60,
    "intermediate_size": 92,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 12,
    "vocab_size": 251,
    "max_position_embeddings": 48,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "tie_word_embeddings": False,
}


def names_of(config: dict) -> list[str]:
    """The tensors that transformers makes for a config."""
    kind = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(kind)
    return [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_rows_claim_exactly_the_tensors_that_transformers_makes(model_type, tied) -> None:
    config = LLAMA | {"model_type": model_type, "tie_word_embeddings": tied}
    family = families.get(model_type)
    assert check(family, family.shape(config), hf_names=names_of(config)) == []


def test_a_surplus_a_missing_and_a_foreign_tensor_are_named() -> None:
    family = families.get("llama")
    names = names_of(LLAMA)
    surplus = check(family, family.shape(LLAMA), hf_names=[*names, "model.layers.0.mlp.gate.bias"])
    assert surplus == [
        "no row claims the Hugging Face tensor model.layers.0.mlp.gate.bias "
        "(nearest: model.layers.0.mlp.gate_proj.weight)"
    ]
    missing = check(family, family.shape(LLAMA), hf_names=names[1:])
    assert missing == [f"the model has no tensor {names[0]}"]
    slots = [bound.slot for bound in family.expand(family.shape(LLAMA))]
    foreign = check(family, family.shape(LLAMA), slots=[*slots, Slot("decoder.extra.weight")])
    assert len(foreign) == 1
    assert "decoder.extra.weight" in foreign[0]


def test_rotary_buffers_of_old_files_may_be_there() -> None:
    family = families.get("llama")
    names = [*names_of(LLAMA), "model.layers.1.self_attn.rotary_emb.inv_freq"]
    assert check(family, family.shape(LLAMA), hf_names=names) == []


def test_both_spellings_of_rotary_scaling_read_the_same() -> None:
    llama3 = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    old = LLAMA | {"rope_scaling": {"type": "llama3", **llama3}}
    new = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    new["rope_parameters"] = {"rope_type": "llama3", "rope_theta": 5e5, **llama3}
    family = families.get("llama")
    assert family.megatron_config(old) == family.megatron_config(new)
    assert family.megatron_config(new)["rotary_base"] == 5e5
    assert family.megatron_config(new)["rope_scaling"] == {"rope_type": "llama3", **llama3}


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "gelu"},
        {"mlp_bias": True},
        {"rope_scaling": {"rope_type": "proportional", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 4.0}},
    ],
)
def test_a_switch_that_cannot_be_carried_over_is_refused(change) -> None:
    with pytest.raises(ConfigError, match=r"Expected: .* Got: "):
        families.get("llama").megatron_config(LLAMA | change)


def test_a_missing_field_and_an_unknown_family_are_named() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "intermediate_size"}
    with pytest.raises(ConfigError, match="intermediate_size"):
        families.get("llama").megatron_config(config)
    with pytest.raises(ConfigError, match="nearest are qwen"):
        families.get("qwen2_5")


def test_head_dim_and_kv_heads_have_transformers_defaults() -> None:
    config = {k: v for k, v in LLAMA.items() if k not in ("head_dim", "num_key_value_heads")}
    theirs = transformers.LlamaConfig(**{k: v for k, v in config.items() if k != "model_type"})
    ours = families.get("llama").megatron_config(config)
    assert ours["kv_channels"] == theirs.head_dim
    assert ours["num_query_groups"] == theirs.num_key_value_heads


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_a_damaged_config_is_bad_input(tmp_path, text) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError):
        families.read_config(tmp_path)


def test_config_is_read_from_the_folder(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert families.read_config(tmp_path) == LLAMA
    with pytest.raises(InputError, match=r"no config\.json"):
        families.read_config(tmp_path / "elsewhere")
