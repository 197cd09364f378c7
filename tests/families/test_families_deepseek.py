"""DeepSeek's published files: their configs, what they hold beyond the model, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import family_bench
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from megatron_bridge import families, torch_dist
from megatron_bridge.__main__ import main
from megatron_bridge.convert import export_hf, import_hf
from megatron_bridge.errors import ConfigError, InputError, MappingError
from megatron_bridge.proof import TENSORS
from megatron_bridge.verify import verify

YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "original_max_position_embeddings": 4096,
        "type": "yarn"}  # fmt: skip
COMMON = {"attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu",
          "max_position_embeddings": 163840, "moe_layer_freq": 1, "rms_norm_eps": 1e-06,
          "rope_theta": 10000, "tie_word_embeddings": False, "kv_lora_rank": 512,
          "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}  # fmt: skip
V2 = {**COMMON, "model_type": "deepseek_v2", "n_shared_experts": 2, "norm_topk_prob": False,
      "num_experts_per_tok": 6, "scoring_func": "softmax", "vocab_size": 102400,
      "first_k_dense_replace": 1, "aux_loss_alpha": 0.001, "seq_aux": True,
      "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "DeepSeek-V2-Lite": {
        **V2, "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "n_group": 1, "topk_group": 1, "n_routed_experts": 64, "num_attention_heads": 16,
        "num_key_value_heads": 16, "num_hidden_layers": 27, "q_lora_rank": None,
        "routed_scaling_factor": 1.0, "topk_method": "greedy"},
    "DeepSeek-V2": {
        **V2, "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "n_group": 8, "topk_group": 3, "n_routed_experts": 160, "num_attention_heads": 128,
        "num_key_value_heads": 128, "num_hidden_layers": 60, "q_lora_rank": 1536,
        "routed_scaling_factor": 16.0, "topk_method": "group_limited_greedy"},
    "DeepSeek-V3": {
        **COMMON, "model_type": "deepseek_v3", "ep_size": 1, "first_k_dense_replace": 3,
        "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "n_group": 8, "topk_group": 4, "n_routed_experts": 256, "n_shared_experts": 1,
        "norm_topk_prob": True, "num_attention_heads": 128, "num_key_value_heads": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "vocab_size": 129280,
        "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
}  # fmt: skip
MEANT: dict[str, dict[str, Any]] = {
    "DeepSeek-V2-Lite": {"q_lora_rank": None, "mscale": 0.707, "moe_router_topk": 6,
                         "moe_shared_expert_intermediate_size": 2816,
                         "moe_layer_freq": [0] + [1] * 26},
    "DeepSeek-V2": {"group_score": "max", "moe_router_num_groups": 8, "moe_router_group_topk": 3,
                    "moe_router_topk_scaling_factor": 16.0, "moe_router_pre_softmax": True},
    "DeepSeek-V3": {"rope_type": "yarn", "rotary_scaling_factor": 40.0, "mscale_all_dim": 1.0,
                    "moe_router_num_groups": 8, "moe_router_group_topk": 4, "v_head_dim": 128,
                    "moe_layer_freq": [0] * 3 + [1] * 58,
                    "moe_router_score_function": "sigmoid"},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_the_published_model(name: str) -> None:
    config = PUBLISHED[name]
    family = families.get(config["model_type"])
    fields = family.megatron_config(config)
    assert {key: fields[key] for key in MEANT[name]} == MEANT[name]
    assert family.megatron_config(transformers.AutoConfig.for_model(**config).to_dict()) == fields
    shape = family.shape(config)
    ours = sum(math.prod(map(shape.size, b.row.sizes)) for b in family.expand(shape))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**config)
        )
    biases = [b for n, b in model.named_buffers() if "e_score_correction_bias" in n]
    assert ours == sum(t.numel() for t in [*model.parameters(), *biases])


def test_only_deepseeks_own_groups_limit_the_choice() -> None:
    lite = families.get("deepseek_v2").megatron_config(PUBLISHED["DeepSeek-V2-Lite"])
    assert not {"group_score", "moe_router_num_groups"} & lite.keys()
    # One group, as some kin of V3 have it: any number of experts may be chosen.
    kin = {**PUBLISHED["DeepSeek-V3"], "n_group": 1, "topk_group": 1, "num_experts_per_tok": 6}
    assert "moe_router_num_groups" not in families.get("deepseek_v3").megatron_config(kin)


@pytest.mark.parametrize(
    ("name", "changes", "where"),
    [
        ("DeepSeek-V3", {"rms_norm_eps": 1e-5}, "rms_norm_eps"),
        ("DeepSeek-V3", {"num_experts_per_tok": 4}, "num_experts_per_tok"),
        ("DeepSeek-V3", {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 1},
         "num_experts_per_tok"),
        ("DeepSeek-V3", {"norm_topk_prob": False}, "norm_topk_prob"),
        ("DeepSeek-V3", {"rope_interleave": False}, "rope_interleave"),
        ("DeepSeek-V3", {"attention_bias": True}, "attention_bias"),
        ("DeepSeek-V3", {"scoring_func": "softmax"}, "scoring_func"),
        ("DeepSeek-V3", {"first_k_dense_replace": 61}, "first_k_dense_replace"),
        ("DeepSeek-V2", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("DeepSeek-V2", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("DeepSeek-V2", {"num_key_value_heads": 8}, "num_key_value_heads"),
        ("DeepSeek-V2", {"n_shared_experts": None}, "n_shared_experts"),
        ("DeepSeek-V2", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type"),
        ("DeepSeek-V2", {"rope_scaling": {**YARN, "mscale_all_dim": 1.0}}, "mscale"),
        ("DeepSeek-V2", {"rope_scaling": {**YARN, "attention_factor": 1.2}}, "attention_factor"),
    ],
)  # fmt: skip
def test_what_megatron_computes_otherwise_is_refused(
    name: str, changes: dict[str, Any], where: str
) -> None:
    config = {**PUBLISHED[name], **changes}
    with pytest.raises(ConfigError, match=f"Where: config.json,.*{where}"):
        families.get(config["model_type"]).megatron_config(config)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy of DeepSeek-V3 in bfloat16, its routers' biases in float32 as in the published file."""
    folder = tmp_path_factory.mktemp("deepseek") / "hf"
    (case,) = (case for case in family_bench.all_cases() if case.name == "deepseek_v3")
    family_bench.save(case, family_bench.build(case), folder)
    tensors = load_file(folder / "model.safetensors")
    _write(folder, {n: t if "correction_bias" in n else t.bfloat16() for n, t in tensors.items()})
    return folder


def _write(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def _config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def test_the_layer_that_predicts_a_further_token_is_left_out_aloud(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = load_file(toy / "model.safetensors")
    extra = {"model.layers.4.eh_proj.weight": torch.ones(3, 5), "model.layers.4.enorm.weight":
             torch.ones(7)}  # fmt: skip
    folder = _write(tmp_path / "hf", tensors | extra, **_config(toy))
    assert main(["import", str(folder), str(tmp_path / "checkpoint")]) == 0
    assert "2 tensors, 22 parameters; they do not come back" in capsys.readouterr().out
    certificate = verify(folder, tmp_path / "checkpoint", proof=TENSORS)
    assert certificate["holds"]
    (left_out,) = certificate["coverage"]["weights_left_out"].values()
    assert left_out == {"tensors": sorted(extra), "parameters": 22}
    export_hf(tmp_path / "checkpoint", tmp_path / "back", proof=TENSORS)
    assert load_file(tmp_path / "back" / "model.safetensors").keys() == tensors.keys()
    beyond = {"model.layers.5.enorm.weight": torch.ones(7)}
    with pytest.raises(MappingError, match=r"model\.layers\.5"):
        import_hf(_write(folder, tensors | beyond), tmp_path / "other", proof=TENSORS)


@pytest.mark.parametrize("sign", ["config", "scales"])
def test_quantised_weights_are_refused_by_name(toy: Path, tmp_path: Path, sign: str) -> None:
    tensors, config = load_file(toy / "model.safetensors"), _config(toy)
    if sign == "config":
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    else:
        tensors["model.layers.0.mlp.up_proj.weight_scale_inv"] = torch.ones(1, 1)
    with pytest.raises(InputError, match=r"quantised in a way.*dequantise"):
        import_hf(
            _write(tmp_path / "hf", tensors, **config), tmp_path / "checkpoint", proof=TENSORS
        )


def test_the_routers_bias_keeps_its_bits_through_every_cast(toy: Path, tmp_path: Path) -> None:
    before = load_file(toy / "model.safetensors")
    import_hf(toy, tmp_path / "one", dtype="bfloat16", proof=TENSORS)
    with torch_dist.Reader(tmp_path / "one") as reader:
        assert reader.read("decoder.layers.1.mlp.router.expert_bias", ()).dtype == torch.float32
    export_hf(tmp_path / "one", tmp_path / "back", dtype="bfloat16", proof=TENSORS)
    after = load_file(tmp_path / "back" / "model.safetensors")
    assert {n: t.dtype for n, t in after.items()} == {n: t.dtype for n, t in before.items()}
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
