"""BLOOM: the first Megatron-LM's GPT with ALiBi and a norm on the embeddings."""

from __future__ import annotations

from typing import Any

from megatron_bridge.families import rows
from megatron_bridge.families.toy import SIZES
from megatron_bridge.mapping import Config, Family, Field

H = "transformer.h.{layer}."

HIDDEN = Field("hidden_size", "hidden_size", other="n_embed")
HEADS = Field("num_attention_heads", "n_head", other="num_attention_heads")


def _sizes(config: Config) -> dict[str, Any]:
    hidden, heads = HIDDEN.read(config), HEADS.read(config)
    return {
        "ffn_hidden_size": 4 * hidden,
        "num_query_groups": heads,
        "kv_channels": hidden // heads,
    }


BLOOM = Family(
    "bloom",
    rows=(
        *rows.embeddings("transformer.word_embeddings", "transformer.ln_f", bias=True),
        *rows.norm("embedding.norm.", "transformer.word_embeddings_layernorm", bias=True),
        *rows.norm(rows.ATTENTION_NORM, H + "input_layernorm", bias=True),
        *rows.norm(rows.MLP_NORM, H + "post_attention_layernorm", bias=True),
        *rows.fused_linears(H, "self_attention", bias=True),
    ),
    fields=(
        Field("num_layers", "n_layer", other="num_hidden_layers"),
        HIDDEN,
        HEADS,
        # ALiBi has no longest sequence; this is the length that the model was trained at.
        Field("max_sequence_length", "seq_length", 2048),
        Field("layernorm_epsilon", "layer_norm_epsilon", 1e-5),
        rows.TIED,
    ),
    computed=(_sizes,),
    fixed={
        **rows.GPT,
        "activation_func": "gelu_tanh",
        "position_embedding_type": "none",
        "alibi": "float32",
        "embedding_norm": True,
    },
    only={"apply_residual_connection_post_layernorm": (False,)},
    parts=rows.untied(True),
    tied=("lm_head.weight", "transformer.word_embeddings.weight"),
    prefix="transformer.",
    toy={
        "model_type": "bloom",
        "n_layer": 4,
        "n_head": 6,
        **{key: SIZES[key] for key in ("hidden_size", "vocab_size", "bos_token_id")},
        "eos_token_id": 330,
    },
)
