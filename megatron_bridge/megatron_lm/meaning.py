"""What a model computes, in one normal form: two descriptions of one model are equal, fact by fact.

Megatron has several ways to say the same (a window on every layer or by a list, YaRN with a factor
of 1 and no scaling), and fields that matter in some models only (the width of a feed-forward layer
that is all experts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from megatron_bridge.megatron_lm.arguments import magnitude
from megatron_bridge.options import Options

Meaning = dict[str, Any]

_PLAIN: Mapping[str, Any] = {
    "num_layers": None,
    "hidden_size": None,
    "num_attention_heads": None,
    "normalization": "LayerNorm",
    "layernorm_epsilon": 1e-5,
    "layernorm_zero_centered_gamma": False,
    "gated_linear_unit": False,
    "activation_func": "gelu",
    "qk_layernorm": False,
    "share_embeddings_and_output_weights": False,
    "position_embedding_type": "learned_absolute",
    "softmax_scale": None,
    "multi_latent_attention": False,
}
"""Fields that stand for themselves, with Megatron's defaults."""
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
_READ = frozenset(
    {
        *_PLAIN, *_LATENT, *asdict(Options()),
        "num_query_groups", "kv_channels", "ffn_hidden_size", "max_sequence_length",
        "add_bias_linear", "add_qkv_bias", "window_size", "window_attn_skip_freq",
        "rotary_base", "rotary_percent", "rotary_interleaved", "rope_type",
        "rotary_scaling_factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
        "mscale", "mscale_all_dim", "num_moe_experts", "moe_layer_freq", "moe_ffn_hidden_size",
        "moe_router_topk", "moe_router_score_function", "moe_router_pre_softmax",
        "moe_router_enable_expert_bias", "moe_router_num_groups", "moe_router_group_topk",
        "moe_router_topk_scaling_factor", "moe_shared_expert_intermediate_size",
        "moe_shared_expert_gate",
    }
)  # fmt: skip


def meaning(fields: Mapping[str, Any]) -> Meaning:
    """Return the normal form of `Family.megatron_config`, or of `arguments.fields`.

    A field that is not known here stands for itself, so that it is compared, not passed over.
    """
    found = {name: fields.get(name, default) for name, default in _PLAIN.items()}
    found |= {name: value for name, value in fields.items() if name not in _READ}
    everything = {**asdict(Options()), **fields}
    biased = bool(fields.get("add_bias_linear", True))
    found |= {
        "bias on query, key and value": biased or bool(fields.get("add_qkv_bias")),
        "bias on the attention's output": biased or everything["attention_output_bias"],
        "bias in the MLP": biased,
        "window of each layer": _windows(fields),
    }
    told = {"attention_output_bias", "rope_scaling", "group_score"}
    found |= {name: everything[name] for name in asdict(Options()) if name not in told}
    if fields.get("multi_latent_attention"):
        found |= {name: fields[name] for name in _LATENT} | _latent_rotary(fields)
    else:
        found |= {name: fields[name] for name in ("num_query_groups", "kv_channels")}
        found |= _rotary(fields)
    sparse = _sparse(fields)
    found["layers with experts"] = [layer for layer, has in enumerate(sparse) if has]
    if not all(sparse):
        found["ffn_hidden_size"] = fields["ffn_hidden_size"]
    return found | (_experts(everything) if any(sparse) else {})


def differences(wanted: Meaning, got: Meaning) -> dict[str, tuple[Any, Any]]:
    """Return what differs by its name: the value on either side."""
    names = sorted(wanted.keys() | got.keys())
    return {
        name: (wanted.get(name), got.get(name))
        for name in names
        if wanted.get(name) != got.get(name)
    }


def _windows(fields: Mapping[str, Any]) -> list[int | None]:
    size, skipped, layers = (
        fields.get("window_size"),
        fields.get("window_attn_skip_freq"),
        fields["num_layers"],
    )
    if not size or size[0] < 0:
        return [None] * layers
    if isinstance(skipped, list):
        return [size[0] if has else None for has in skipped]
    return [size[0] if not skipped or (i + 1) % skipped else None for i in range(layers)]


def _rotary(fields: Mapping[str, Any]) -> Meaning:
    if fields.get("position_embedding_type") == "learned_absolute":
        return {"max_sequence_length": fields["max_sequence_length"]}
    if fields.get("position_embedding_type") != "rope":
        return {}
    scaling = fields.get("rope_scaling")
    return {
        "rotary_base": fields.get("rotary_base", 10000),
        "rotary_percent": fields.get("rotary_percent", 1.0),
        "rotary_interleaved": bool(fields.get("rotary_interleaved")),
        "rope_scaling": dict(scaling) if scaling else None,
    }


def _latent_rotary(fields: Mapping[str, Any]) -> Meaning:
    factor, over = fields["rotary_scaling_factor"], fields.get("mscale_all_dim") or 0.0
    found: Meaning = {
        "rotary_base": fields["rotary_base"],
        "rotary_interleaved": bool(fields.get("rotary_interleaved")),
        # Scores are multiplied by its square with either kind of rotary positions.
        "magnitude of scores": magnitude(factor, over),
    }
    if fields["rope_type"] == "rope":
        return found | {"rotary_percent": fields.get("rotary_percent", 1.0), "YaRN": None}
    yarn = {
        "factor": factor,
        "original_max_position_embeddings": fields.get("original_max_position_embeddings"),
        "beta_fast": fields.get("beta_fast"),
        "beta_slow": fields.get("beta_slow"),
        "magnitude": magnitude(factor, fields["mscale"]) / magnitude(factor, over),
    }
    return found | {"rotary_percent": 1.0, "YaRN": yarn if factor != 1 else None}


def _sparse(fields: Mapping[str, Any]) -> list[bool]:
    kinds, layers = fields.get("moe_layer_freq") or 1, fields["num_layers"]
    if not fields.get("num_moe_experts"):
        return [False] * layers
    if isinstance(kinds, int):
        return [layer % kinds == 0 for layer in range(layers)]
    return [bool(kind) for kind in kinds]


def _experts(fields: Mapping[str, Any]) -> Meaning:
    topk, allowed = fields["moe_router_topk"], fields.get("moe_router_group_topk")
    sigmoid = fields.get("moe_router_score_function", "softmax") == "sigmoid"
    groups = fields.get("moe_router_num_groups")
    shared = fields.get("moe_shared_expert_intermediate_size") or None
    found: Meaning = {
        "num_moe_experts": fields["num_moe_experts"],
        "moe_ffn_hidden_size": fields["moe_ffn_hidden_size"],
        "moe_router_topk": topk,
        "moe_router_score_function": "sigmoid" if sigmoid else "softmax",
        # Sigmoid scores do not depend on the other experts.
        "moe_router_pre_softmax": None if sigmoid else bool(fields.get("moe_router_pre_softmax")),
        "moe_router_enable_expert_bias": bool(fields.get("moe_router_enable_expert_bias")),
        "moe_router_topk_scaling_factor": float(fields.get("moe_router_topk_scaling_factor") or 1),
        "moe_shared_expert_intermediate_size": shared,
        "moe_shared_expert_gate": bool(shared and fields.get("moe_shared_expert_gate")),
        "groups of experts": None,
    }
    if groups and groups != allowed:
        best = 1 if fields["group_score"] == "max" else topk // allowed
        found["groups of experts"] = {"groups": groups, "of which": allowed, "by the best": best}
    return found
