"""Gemma 1 to 3 (text): scaled embeddings, norms that multiply by `1 + weight`, tied output.

Weights stay as they are: `1 + weight` taken into the norm would lose bits on the way back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from megatron_bridge.errors import ConfigError
from megatron_bridge.families import rotary, rows
from megatron_bridge.families.rows import H, M
from megatron_bridge.families.toy import TOY
from megatron_bridge.mapping import Config, Family

FIELDS = rows.defaults(
    rows.DECODER_FIELDS,
    head_dim=256,
    num_key_value_heads=4,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)


def _embedding_scale(config: Config) -> dict[str, Any]:
    return {"embedding_scale": config["hidden_size"] ** 0.5}


_FIXED: Mapping[str, Any] = {
    **rows.SWIGLU,
    "activation_func": "gelu_tanh",
    "layernorm_zero_centered_gamma": True,
}

GEMMA = Family(
    "gemma",
    rows=(*rows.embeddings(), *rows.PRE_NORMS, *rows.attention(), *rows.swiglu()),
    fields=rows.defaults(FIELDS, num_key_value_heads=16),
    computed=(rotary.rope, _embedding_scale),
    fixed=_FIXED,
    only={
        # The first files say "gelu" and mean the approximation by tanh.
        "hidden_act": ("gelu_pytorch_tanh", "gelu"),
        "hidden_activation": (None, "gelu_pytorch_tanh"),
        "attention_bias": (False,),
        "use_bidirectional_attention": (None, False),
    },
    parts=rows.untied(default=True),
    buffers=rows.ROTARY_BUFFERS,
    toy={"model_type": "gemma", **TOY, "tie_word_embeddings": True},
)


def _scores(config: Config) -> dict[str, Any]:
    """Scale of the attention's scores, and the soft caps; null turns a cap off."""
    return {
        "softmax_scale": config.get("query_pre_attn_scalar", 256) ** -0.5,
        "attention_softcap": config.get("attn_logit_softcapping", 50.0),
        "output_softcap": config.get("final_logit_softcapping", 30.0),
    }


def _windows(config: Config, pattern: int) -> dict[str, Any]:
    """All layers have the window but every `pattern`-th."""
    kinds = config.get("layer_types") or [
        "sliding_attention" if (layer + 1) % pattern else "full_attention"
        for layer in range(config["num_hidden_layers"])
    ]
    return rows.window({"sliding_window": 4096, **config, "layer_types": kinds})


_SANDWICH = (
    *rows.norm(rows.ATTENTION_NORM, H + "input_layernorm"),
    *rows.norm(M + "post_attn_norm.", H + "post_attention_layernorm"),
    *rows.norm(rows.MLP_NORM, H + "pre_feedforward_layernorm"),
    *rows.norm(M + "post_mlp_norm.", H + "post_feedforward_layernorm"),
)

GEMMA2 = Family(
    "gemma2",
    rows=(*rows.embeddings(), *_SANDWICH, *rows.attention(), *rows.swiglu()),
    fields=FIELDS,
    computed=(rotary.rope, _embedding_scale, _scores, lambda config: _windows(config, 2)),
    fixed={**_FIXED, "layer": "sandwich"},
    only={
        "hidden_activation": ("gelu_pytorch_tanh",),
        "attention_bias": (False,),
        "use_bidirectional_attention": (None, False),
    },
    parts=rows.untied(default=True),
    buffers=rows.ROTARY_BUFFERS,
    toy={
        "model_type": "gemma2",
        **TOY,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 14,
        # Caps low enough to bend the scores and logits of a toy.
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 11.0,
        "sliding_window": 5,
    },
)


def _two_rotary_bases(config: Config) -> dict[str, Any]:
    """Layers with a window have their own base, and none of the scaling.

    transformers 5 writes `rope_parameters` by layer type; before it, `rope_theta` and
    `rope_scaling` were the full layers', `rope_local_base_freq` the others'.
    """
    given = config.get("rope_parameters") or {}
    full = {
        "rope_theta": config.get("rope_theta") or 1e6,
        **(given.get("full_attention") or {}),
        **(config.get("rope_scaling") or {}),
    }
    local = given.get("sliding_attention") or {}
    fields = rotary.rope({**config, "rope_parameters": full})
    factor = (fields["rope_scaling"] or {}).get("attention_factor", 1.0)
    if factor != 1.0 or local.get("rope_type", "default") != "default":
        raise ConfigError(
            "gemma3_text: this rotary scaling cannot be carried over to Megatron",
            where="config.json, rope_parameters",
            expected="layers with a window unscaled, and no factor on cosine and sine",
            got=f"full {full}, sliding {local}",
            fix="convert a model without this scaling",
        )
    base = local.get("rope_theta") or config.get("rope_local_base_freq") or 1e4
    return {**fields, "window_rotary_base": base}


def _no_caps_by_default(config: Config) -> dict[str, Any]:
    return _scores({"attn_logit_softcapping": None, "final_logit_softcapping": None, **config})


GEMMA3_TEXT = replace(
    GEMMA2,
    model_type="gemma3_text",
    rows=(*GEMMA2.rows, *rows.QK_NORM),
    fields=rows.defaults(FIELDS, num_attention_heads=8, max_position_embeddings=131072),
    computed=(
        _two_rotary_bases,
        _embedding_scale,
        _no_caps_by_default,
        lambda config: _windows(config, config.get("sliding_window_pattern") or 6),
    ),
    fixed={**GEMMA2.fixed, "qk_layernorm": True},
    # transformers reads the attention's cap and does not apply it.
    only={**GEMMA2.only, "attn_logit_softcapping": (None,)},
    toy={
        "model_type": "gemma3_text",
        **TOY,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 14,
        "sliding_window": 5,
        "layer_types": ["sliding_attention"] * 2 + ["full_attention", "sliding_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 4.0},
        },
    },
)
"""The language model alone; a file of text and images has the type "gemma3"."""
