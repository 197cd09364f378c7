"""ChatGLM2, ChatGLM3 and GLM-4-9B in their own names; transformers' Glm is the same network.

Read in the remote code's public copies: half of each head is rotated in interleaved pairs, and
`apply_query_key_layer_scaling` divides and multiplies scores by the same number.
"""

from __future__ import annotations

from typing import Any

from megatron_bridge.errors import ConfigError
from megatron_bridge.families import native, rows
from megatron_bridge.families.glm import GLM, PREFIX_MODELS
from megatron_bridge.families.toy import TOY
from megatron_bridge.layouts import FUSED_QKV
from megatron_bridge.mapping import Config, Family, Field

LAYER = "transformer.encoder.layers.{layer}."


def _rope(config: Config) -> dict[str, Any]:
    """ChatGLM3 and GLM-4 multiply the rotary base by `rope_ratio`: 50 at 32k, 500 and more later.

    ChatGLM2-6B-32K has the same entry and divides positions by it; nothing else in `config.json`
    tells the two apart.
    """
    ratio = config.get("rope_ratio") or 1
    if 1 < ratio < 50:
        raise ConfigError(
            "chatglm: ChatGLM2-6B-32K divides positions by rope_ratio, later models multiply the "
            "rotary base, and this value is not one of theirs",
            where="config.json, rope_ratio",
            expected="1, or the 50, 500 or 10000 of ChatGLM3-6B-32K and GLM-4",
            got=ratio,
            fix="convert ChatGLM2-6B, ChatGLM3 or GLM-4",
        )
    return {
        "position_embedding_type": "rope",
        "rotary_base": 10000.0 * ratio,
        "rotary_percent": 0.5,
        "rope_scaling": None,
    }


def _native(config: Config) -> tuple[Family, Config]:
    return GLM, native.config_of(
        GLM,
        CHATGLM.megatron_config(config),
        config,
        architecture="GlmForCausalLM",
        vocab_size=config[CHATGLM.vocab],
        partial_rotary_factor=0.5,
    )


CHATGLM = Family(
    "chatglm",
    rows=(
        *rows.embeddings(
            "transformer.embedding.word_embeddings",
            "transformer.encoder.final_layernorm",
            "transformer.output_layer",
        ),
        *rows.norm(rows.ATTENTION_NORM, LAYER + "input_layernorm"),
        *rows.norm(rows.MLP_NORM, LAYER + "post_attention_layernorm"),
        *rows.linear(
            rows.QKV,
            LAYER + "self_attention.query_key_value",
            FUSED_QKV,
            sizes=rows.QKV_SIZES,
            bias="qkv bias",
        ),
        *rows.linear(rows.PROJ, LAYER + "self_attention.dense", sizes=rows.PROJ_SIZES),
        *rows.linear(rows.FC1, LAYER + "mlp.dense_h_to_4h", sizes=rows.GATED_SIZES),
        *rows.linear(rows.FC2, LAYER + "mlp.dense_4h_to_h", sizes=rows.FC2_SIZES),
    ),
    fields=(
        Field("num_layers", "num_layers"),
        Field("hidden_size", "hidden_size"),
        Field("ffn_hidden_size", "ffn_hidden_size"),
        Field("num_attention_heads", "num_attention_heads"),
        Field("num_query_groups", "multi_query_group_num"),
        Field("kv_channels", "kv_channels", 128),
        Field("max_sequence_length", "seq_length", 2048),
        Field("layernorm_epsilon", "layernorm_epsilon", 1e-5),
        Field("add_qkv_bias", "add_qkv_bias", False),
    ),
    computed=(_rope,),
    fixed={
        **rows.SWIGLU,
        "rotary_interleaved": True,
        "share_embeddings_and_output_weights": False,
    },
    only={
        "multi_query_attention": (True,),
        "original_rope": (True,),
        "rmsnorm": (True,),
        "post_layer_norm": (True,),
        "add_bias_linear": (False,),
        "apply_residual_connection_post_layernorm": (False,),
        "tie_word_embeddings": (False,),
        "quantization_bit": (0, None),
        "pre_seq_len": (None,),
        "vision_config": (None,),
    },
    refused=PREFIX_MODELS,
    parts={**rows.untied(), "qkv bias": lambda config: bool(config.get("add_qkv_bias"))},
    buffers=(r"transformer\.rotary_pos_emb\.inv_freq",),
    vocab="padded_vocab_size",
    native=_native,
    toy={
        "model_type": "chatglm",
        "num_layers": TOY["num_hidden_layers"],
        "hidden_size": TOY["hidden_size"],
        "ffn_hidden_size": TOY["intermediate_size"],
        "num_attention_heads": TOY["num_attention_heads"],
        "multi_query_attention": True,
        "multi_query_group_num": TOY["num_key_value_heads"],
        "kv_channels": TOY["head_dim"],
        "seq_length": TOY["max_position_embeddings"],
        "padded_vocab_size": TOY["vocab_size"],
        "layernorm_epsilon": 1e-5,
        "add_qkv_bias": True,
        "apply_query_key_layer_scaling": True,
        "rope_ratio": 50,
        "eos_token_id": 330,
        "pad_token_id": 0,
    },
)
