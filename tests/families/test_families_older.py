"""Files and `config.json`s of the older families as they were published, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import family_bench
import pytest
import torch
import transformers
from family_cases import Case
from safetensors.torch import load_file, save_file

from megatron_bridge import families
from megatron_bridge.config import ParallelConfig, validate_layout
from megatron_bridge.convert import export_hf, import_hf
from megatron_bridge.errors import ConfigError, MappingError
from megatron_bridge.proof import TENSORS
from megatron_bridge.verify import verify

MASK = torch.ones(1, 1, 7, 7, dtype=torch.bool).tril()
OLD_FILES: Mapping[str, tuple[str, dict[str, torch.Tensor]]] = {
    "gpt2": ("transformer.", {
        "h.0.attn.bias": MASK.float(),
        "h.3.attn.bias": MASK,
        "h.3.attn.masked_bias": torch.tensor(-1e4),
    }),
    "bloom": ("transformer.", {}),
    "opt": ("model.", {}),
    "gpt_neox": ("", {
        "gpt_neox.layers.0.attention.bias": MASK,
        "gpt_neox.layers.0.attention.masked_bias": torch.tensor(float("-inf")).half(),
        "gpt_neox.layers.3.attention.bias": MASK.to(torch.uint8),
        "gpt_neox.layers.3.attention.rotary_emb.inv_freq": torch.rand(2),
    }),
}  # fmt: skip
"""By model type: the prefix that the first files lack, and the buffers that they hold."""


def old_file(model_type: str, folder: Path) -> dict[str, torch.Tensor]:
    """Write a model as its first files were; return its weights."""
    case = Case(model_type, families.get(model_type).toy, {})
    family_bench.save(case, family_bench.build(case), folder)
    prefix, buffers = OLD_FILES[model_type]
    weights = load_file(folder / "model.safetensors")
    weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    save_file(weights | buffers, folder / "model.safetensors", metadata={"format": "pt"})
    return weights


@pytest.mark.parametrize("model_type", OLD_FILES)
def test_an_old_file_goes_back_under_its_own_names(model_type: str, tmp_path: Path) -> None:
    weights = old_file(model_type, tmp_path / "hf")
    certificate = import_hf(tmp_path / "hf", tmp_path / "checkpoint", proof=TENSORS)
    left_out = certificate["coverage"]["buffers_left_out"]
    assert left_out == sorted(OLD_FILES[model_type][1])
    assert certificate["dtype"]["cast"] is False
    assert verify(tmp_path / "hf", tmp_path / "checkpoint", proof=TENSORS)["holds"]
    export_hf(tmp_path / "checkpoint", tmp_path / "back", proof=TENSORS)
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in back)


@pytest.mark.parametrize("model_type", ["gpt2", "opt"])
def test_a_tensor_that_is_no_buffer_is_not_left_out(model_type: str, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    weights = old_file(model_type, folder)
    stray = {"h.0.attn.scale": torch.ones(1)}
    save_file(weights | stray, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MappingError, match=r"no row claims .* h\.0\.attn\.scale"):
        import_hf(folder, tmp_path / "checkpoint", proof=TENSORS)


OLD_CONFIGS: Mapping[str, dict[str, Any]] = {
    "gpt2": {"n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
             "vocab_size": 50257},
    "gpt_bigcode": {"n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_layer": 40,
                    "n_positions": 8192, "vocab_size": 49152,
                    "activation_function": "gelu", "inference_runner": 0, "max_batch_size": None},
    "starcoder2": {"hidden_size": 3072, "intermediate_size": 12288, "num_attention_heads": 24,
                   "num_hidden_layers": 30, "num_key_value_heads": 2, "vocab_size": 49152,
                   "max_position_embeddings": 16384, "rope_theta": 999999.4420358813,
                   "sliding_window": 4096, "norm_type": "layer_norm", "mlp_type": "default"},
    "falcon": {"hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60,
               "num_kv_heads": 8, "new_decoder_architecture": True, "vocab_size": 65024,
               "multi_query": True, "parallel_attn": True},
    "bloom": {"n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "n_inner": None,
              "vocab_size": 250880, "masked_softmax_fusion": True},
    "opt": {"hidden_size": 768, "ffn_dim": 3072, "num_attention_heads": 12,
            "num_hidden_layers": 12, "max_position_embeddings": 2048, "vocab_size": 50272,
            "word_embed_proj_dim": 768, "prefix": "</s>"},
    "gpt_neox": {"hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64,
                 "num_hidden_layers": 44, "max_position_embeddings": 2048, "vocab_size": 50432,
                 "hidden_act": "gelu_fast", "rotary_emb_base": 25000, "rotary_pct": 0.5},
    "cohere": {"hidden_size": 8192, "intermediate_size": 22528, "num_attention_heads": 64,
               "num_hidden_layers": 40, "num_key_value_heads": 64, "vocab_size": 256000,
               "max_position_embeddings": 8192, "rope_theta": 8000000.0, "logit_scale": 0.0625},
}  # fmt: skip
"""Sizes and switches of files before transformers 5."""


@pytest.mark.parametrize("model_type", OLD_CONFIGS)
def test_an_old_config_reads_as_transformers_writes_it_today(model_type: str) -> None:
    old = {"model_type": model_type, **OLD_CONFIGS[model_type]}
    new = transformers.AutoConfig.for_model(**old).to_dict()
    family = families.get(model_type)
    assert new.keys() - old.keys()
    assert family.megatron_config(old) == family.megatron_config(new)
    assert family.shape(old) == family.shape(new)


def test_gpt_neox_rotates_a_quarter_of_a_head_unless_its_config_says_more() -> None:
    sizes = {"model_type": "gpt_neox", **OLD_CONFIGS["gpt_neox"]}
    fields = families.get("gpt_neox").megatron_config(sizes)
    assert (fields["rotary_percent"], fields["rotary_base"]) == (0.5, 25000)
    del sizes["rotary_pct"]
    assert families.get("gpt_neox").megatron_config(sizes)["rotary_percent"] == 0.25


def test_opts_unused_positions_are_not_counted_in_the_longest_sequence() -> None:
    fields = families.get("opt").megatron_config(families.get("opt").toy)
    assert fields["max_sequence_length"] == 132
    validate_layout(fields, ParallelConfig(), 130)
    with pytest.raises(ConfigError, match="at most the model's 130 positions"):
        validate_layout(fields, ParallelConfig(), 131)


@pytest.mark.parametrize(
    ("changes", "layer", "shared", "groups"),
    [
        ({}, "parallel", True, 1),
        ({"multi_query": False}, "parallel", True, 6),
        ({"num_kv_heads": 2}, "parallel", True, 1),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, "parallel", False, 2),
        ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, "parallel", True, 6),
        ({"parallel_attn": False}, "sequential", False, 1),
    ],
)
def test_falcons_kinds(changes: dict[str, Any], layer: str, shared: bool, groups: int) -> None:
    family = families.get("falcon")
    fields = family.megatron_config({**family.toy, **changes})
    found = fields["layer"], fields["shared_norm"], fields["num_query_groups"]
    assert found == (layer, shared, groups)


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("gpt2", {"reorder_and_upcast_attn": True}),
        ("gpt2", {"scale_attn_weights": False}),
        ("gpt2", {"add_cross_attention": True}),
        ("gpt2", {"activation_function": "tanh"}),
        ("starcoder2", {"mlp_type": "gated"}),
        ("bloom", {"apply_residual_connection_post_layernorm": True}),
        ("opt", {"do_layer_norm_before": False}),
        ("opt", {"word_embed_proj_dim": 36}),
        ("opt", {"_remove_final_layer_norm": True}),
        ("gpt_neox", {"attention_bias": False}),
        ("cohere", {"use_qk_norm": True}),
        ("cohere", {"attention_bias": True}),
    ],
)
def test_what_cannot_be_carried_over_is_named(model_type: str, change: dict[str, Any]) -> None:
    family = families.get(model_type)
    (key,) = change
    with pytest.raises(ConfigError, match=rf"config\.json, {key}"):
        family.megatron_config({**family.toy, **change})


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_parallel_layer_drops_attention_and_mlp_out_in_training_only(rate: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Megatron's own, when it is imported
        from megatron_bridge.worker.modules import ParallelLayer

    layer: Any = ParallelLayer.__new__(ParallelLayer)
    torch.nn.Module.__init__(layer)
    layer.hidden_dropout = rate
    layer.input_layernorm = layer.pre_mlp_layernorm = torch.nn.Identity()
    layer.self_attention = lambda x, **_: (x, None)
    layer.mlp = lambda y: (y, torch.ones(6))
    x = torch.ones(5, 2, 6)
    trained, _ = layer.forward(x)
    assert set(trained.unique().tolist()) == ({1.0, 7.0} if rate else {4.0})
    answered, _ = layer.eval().forward(x)
    assert answered.unique().tolist() == [4.0]
