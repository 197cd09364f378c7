"""Real files of ChatGLM, GLM, Qwen 1, Baichuan and InternLM: which model each of them is."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from megatron_bridge import families
from megatron_bridge.errors import ConfigError
from megatron_bridge.mapping import check

CHATGLM2 = {
    "model_type": "chatglm", "add_bias_linear": False, "add_qkv_bias": True,
    "apply_query_key_layer_scaling": True, "apply_residual_connection_post_layernorm": False,
    "ffn_hidden_size": 13696, "fp32_residual_connection": False, "hidden_size": 4096,
    "kv_channels": 128, "layernorm_epsilon": 1e-05, "multi_query_attention": True,
    "multi_query_group_num": 2, "num_attention_heads": 32, "num_layers": 28, "original_rope": True,
    "padded_vocab_size": 65024, "post_layer_norm": True, "pre_seq_len": None, "rmsnorm": True,
    "quantization_bit": 0, "seq_length": 32768, "tie_word_embeddings": False,
}  # fmt: skip
GLM4_9B = CHATGLM2 | {
    "layernorm_epsilon": 1.5625e-07, "num_hidden_layers": 40, "num_layers": 40, "rope_ratio": 500,
    "padded_vocab_size": 151552, "seq_length": 131072, "vocab_size": 151552,
}  # fmt: skip
CHATGLM1 = {
    "model_type": "chatglm", "hidden_size": 4096, "inner_hidden_size": 16384,
    "layernorm_epsilon": 1e-05, "max_sequence_length": 2048, "num_attention_heads": 32,
    "num_layers": 28, "position_encoding_2d": True, "vocab_size": 130528,
}  # fmt: skip
GLM_2021 = {
    "model_type": "glm", "attention_scale": 1.0, "block_position_encoding": True,
    "hidden_size": 4096, "max_sequence_length": 1024, "num_attention_heads": 64, "num_layers": 48,
    "relative_encoding": False, "vocab_size": 50304,
}  # fmt: skip
QWEN_7B = {
    "model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128,
    "layer_norm_epsilon": 1e-06, "max_position_embeddings": 32768, "no_bias": True,
    "num_attention_heads": 32, "num_hidden_layers": 32, "rotary_emb_base": 10000,
    "rotary_pct": 1.0, "scale_attn_weights": True, "seq_length": 8192,
    "tie_word_embeddings": False, "use_dynamic_ntk": True, "use_logn_attn": True,
    "vocab_size": 151936,
}  # fmt: skip
QWEN_7B_FIRST = {
    "model_type": "qwen", "ffn_hidden_size": 22016, "kv_channels": 128, "n_embd": 4096,
    "layer_norm_epsilon": 1e-06, "n_head": 32, "n_layer": 32, "n_positions": 8192,
    "no_bias": True, "padded_vocab_size": 151936, "pos_emb": "rotary", "rotary_emb_base": 10000,
    "rotary_pct": 1.0, "scale_attn_weights": True, "seq_length": 2048, "vocab_size": 151936,
    "apply_residual_connection_post_layernorm": False,
}  # fmt: skip
BAICHUAN_7B = {
    "model_type": "baichuan", "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "num_attention_heads": 32,
    "num_hidden_layers": 32, "rms_norm_eps": 1e-06, "tie_word_embeddings": False,
    "vocab_size": 64000,
}  # fmt: skip
BAICHUAN2_7B = BAICHUAN_7B | {"model_max_length": 4096, "vocab_size": 125696}
BAICHUAN_13B = {
    "model_type": "baichuan", "hidden_act": "silu", "hidden_size": 5120,
    "intermediate_size": 13696, "model_max_length": 4096, "num_attention_heads": 40,
    "num_hidden_layers": 40, "rms_norm_eps": 1e-06, "tie_word_embeddings": False,
    "vocab_size": 64000,
}  # fmt: skip
INTERNLM_20B = {
    "model_type": "internlm", "bias": False, "hidden_act": "silu", "hidden_size": 5120,
    "intermediate_size": 13824, "max_position_embeddings": 4096, "num_attention_heads": 40,
    "num_hidden_layers": 60, "num_key_value_heads": 40, "rms_norm_eps": 1e-06,
    "rotary": {"base": 10000, "type": "dynamic"}, "tie_word_embeddings": False,
    "vocab_size": 103168,
}  # fmt: skip


def read(config: dict[str, Any]) -> dict[str, Any]:
    return families.get(config["model_type"]).megatron_config(config)


def test_chatglm_2_3_and_glm_4_differ_in_rotary_base_and_epsilon() -> None:
    old, new = read(CHATGLM2), read(GLM4_9B)
    assert (old["rotary_base"], new["rotary_base"]) == (1e4, 5e6)
    assert (old["layernorm_epsilon"], new["layernorm_epsilon"]) == (1e-5, 1.5625e-7)
    assert old["num_query_groups"] == 2
    family = families.get("chatglm")
    assert family.shape(CHATGLM2).vocab == 65024
    names = {name for bound in family.expand(family.shape(CHATGLM2)) for name in bound.hf}
    assert "transformer.encoder.layers.27.self_attention.query_key_value.bias" in names
    names.add("transformer.rotary_pos_emb.inv_freq")
    assert check(family, family.shape(CHATGLM2), hf_names=names) == []


@pytest.mark.parametrize("config", [CHATGLM1, GLM_2021], ids=["ChatGLM-1", "GLM of 2021"])
def test_models_that_read_their_prompt_both_ways_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"position_encoding.*two positions"):
        read(config)


@pytest.mark.parametrize(
    "change",
    [
        {"rope_ratio": 16},
        {"multi_query_attention": False},
        {"original_rope": False},
        {"quantization_bit": 4},
        {"pre_seq_len": 128},
        {"vision_config": {"hidden_size": 1792}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_chatglm_refuses_what_another_network_would_need(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        read(CHATGLM2 | change)


def test_glm_has_transformers_defaults() -> None:
    sizes = {"hidden_size": 4096, "num_hidden_layers": 40, "intermediate_size": 13696,
             "num_attention_heads": 32, "vocab_size": 151552}  # fmt: skip
    for model_type in ("glm", "glm4"):
        bare = {"model_type": model_type, **sizes, "rope_theta": 5e6}
        full = transformers.AutoConfig.for_model(**bare).to_dict()
        assert read(bare) == read(full)
        assert read(bare)["rotary_percent"] == 0.5
        assert read(bare)["num_query_groups"] == 2


def test_both_spellings_of_qwen_1_are_one_network() -> None:
    first, later = read(QWEN_7B_FIRST), read(QWEN_7B)
    assert first.pop("max_sequence_length") == 2048
    assert later.pop("max_sequence_length") == 8192
    assert first == later
    assert later["ffn_hidden_size"] == 11008
    with pytest.raises(ConfigError, match="visual"):
        read(QWEN_7B | {"visual": {"layers": 48}})


@pytest.mark.parametrize(
    ("config", "positions", "normalized", "alibi"),
    [
        (BAICHUAN_7B, "rope", False, None),
        (BAICHUAN2_7B, "rope", True, None),
        (BAICHUAN_13B, "none", False, "float32"),
        (BAICHUAN_13B | {"vocab_size": 125696}, "none", True, "float32"),
        (BAICHUAN_13B | {"z_loss_weight": 0}, "none", True, "float32"),
    ],
)
def test_baichuans_four_models(
    config: dict[str, Any], positions: str, normalized: bool, alibi: str | None
) -> None:
    fields = read(config)
    assert fields["position_embedding_type"] == positions
    assert fields["normalized_output"] is normalized
    assert fields.get("alibi") == alibi
    assert fields["max_sequence_length"] == 4096


@pytest.mark.parametrize("hidden_size", [4096, 5120])
def test_a_baichuan_that_contradicts_itself_is_refused(hidden_size: int) -> None:
    config = BAICHUAN_13B if hidden_size == 4096 else BAICHUAN_7B
    with pytest.raises(ConfigError, match="rotary or ALiBi"):
        read(config | {"hidden_size": hidden_size})


def test_internlms_rotary_entry_is_read() -> None:
    fields = read(INTERNLM_20B)
    assert fields["rope_scaling"] == {
        "rope_type": "dynamic", "factor": 1.0, "max_position_embeddings": 4096,
    }  # fmt: skip
    origin = read(INTERNLM_20B | {"rotary": {"base": 50000, "type": "origin"}})
    assert (origin["rotary_base"], origin["rope_scaling"]) == (50000, None)
