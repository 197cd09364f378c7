"""Qwen 1 in its own names; transformers' Qwen2 with a KV head for every head is the same network.

Read in public copies of the remote code: the MLP is `w1 x * silu(w2 x)`, so `w2` is the gate, and
`intermediate_size` counts both. Dynamic rotary positions and scaled queries (`use_dynamic_ntk`,
`use_logn_attn`) begin beyond `seq_length`, in inference only.
"""

from __future__ import annotations

from typing import Any

from megatron_bridge.families import native, rows
from megatron_bridge.families.qwen2 import QWEN2
from megatron_bridge.families.toy import TOY
from megatron_bridge.layouts import FUSED_QKV, STACKED
from megatron_bridge.mapping import Config, Family, Field

LAYER = "transformer.h.{layer}."
HEADS = Field("num_attention_heads", "num_attention_heads", other="n_head")
BOTH_HALVES = Field("ffn_hidden_size", "intermediate_size", other="ffn_hidden_size")


def _sizes(config: Config) -> dict[str, Any]:
    return {
        "ffn_hidden_size": BOTH_HALVES.read(config) // 2,
        "num_query_groups": HEADS.read(config),
    }


def _native(config: Config) -> tuple[Family, Config]:
    return QWEN2, native.config_of(
        QWEN2,
        QWEN.megatron_config(config),
        config,
        architecture="Qwen2ForCausalLM",
        vocab_size=config[QWEN.vocab],
    )


QWEN = Family(
    "qwen",
    rows=(
        *rows.embeddings("transformer.wte", "transformer.ln_f"),
        *rows.norm(rows.ATTENTION_NORM, LAYER + "ln_1"),
        *rows.norm(rows.MLP_NORM, LAYER + "ln_2"),
        *rows.linear(rows.QKV, LAYER + "attn.c_attn", FUSED_QKV, sizes=rows.QKV_SIZES, bias=True),
        *rows.linear(rows.PROJ, LAYER + "attn.c_proj", sizes=rows.PROJ_SIZES),
        *rows.linear(
            rows.FC1, (LAYER + "mlp.w2", LAYER + "mlp.w1"), STACKED, sizes=rows.GATED_SIZES
        ),
        *rows.linear(rows.FC2, LAYER + "mlp.c_proj", sizes=rows.FC2_SIZES),
    ),
    fields=(
        Field("num_layers", "num_hidden_layers", other="n_layer"),
        Field("hidden_size", "hidden_size", other="n_embd"),
        HEADS,
        Field("kv_channels", "kv_channels", 128),
        Field("max_sequence_length", "seq_length", 2048, other="max_position_embeddings"),
        Field("layernorm_epsilon", "layer_norm_epsilon", 1e-6),
        Field("rotary_base", "rotary_emb_base", 10000.0),
    ),
    computed=(_sizes,),
    fixed={
        **rows.SWIGLU,
        "add_qkv_bias": True,
        "position_embedding_type": "rope",
        "rotary_percent": 1.0,
        "rope_scaling": None,
        "share_embeddings_and_output_weights": False,
    },
    only={
        "no_bias": (True,),
        "rotary_pct": (1.0,),
        "scale_attn_weights": (True,),
        "apply_residual_connection_post_layernorm": (False,),
        "tie_word_embeddings": (False,),
        "visual": (None,),
    },
    parts=rows.untied(),
    buffers=(r"transformer\.rotary_emb\.inv_freq",),
    native=_native,
    toy={
        "model_type": "qwen",
        "num_hidden_layers": TOY["num_hidden_layers"],
        "hidden_size": TOY["hidden_size"],
        "intermediate_size": 2 * TOY["intermediate_size"],
        "num_attention_heads": TOY["num_attention_heads"],
        "kv_channels": TOY["hidden_size"] // TOY["num_attention_heads"],
        "seq_length": TOY["max_position_embeddings"],
        "vocab_size": TOY["vocab_size"],
        "layer_norm_epsilon": 1e-6,
        "rotary_emb_base": 10000,
        "rotary_pct": 1.0,
        "no_bias": True,
        "eos_token_id": 330,
    },
)
