"""A run's arguments, in Megatron-LM's words, as the fields that families speak of.

Megatron-LM keeps every argument of the run in its checkpoints. Which of them bear on what the model
computes is read off its `core_transformer_config_from_args` and `gpt_config_from_args`; what none
of our families can carry is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from megatron_bridge.errors import ConfigError, InputError

Arguments = Mapping[str, Any]
"""The entries of Megatron-LM's `args`, by name."""

_ROPE_FACTOR = 8.0
_MAYBE_IGNORED = {
    "rope_scaling_factor": _ROPE_FACTOR,
    "rotary_seq_len_interpolation_factor": None,
}
"""Arguments that some builders of models do not heed, and what they take instead."""

_NO_FAMILY = (
    "apply_residual_connection_post_layernorm", "softmax_scale", "qk_l2_norm", "glu_linear_offset",
    "activation_func_clamp_value", "no_rope_freq", "attention_output_gate",
    "experimental_attention_variant", "linear_attention_type", "linear_attention_freq",
    "heterogeneous_layers_config_path", "hybrid_layer_pattern", "hybrid_override_pattern",
    "is_hybrid_model", "mtp_num_layers", "moe_latent_size", "moe_apply_probs_on_input",
    "moe_mlp_glu_interleave_size", "moe_shared_expert_glu_interleave_size",
    "moe_router_force_load_balancing", "moe_router_force_biased",
    "moe_router_topk_limited_devices", "use_mup", "retro_add_retriever", "quick_geglu",
    "squared_relu", "bert_load",
)  # fmt: skip
"""Arguments that change what is computed, in a way that no family here has, unless they are off."""
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "softmax_type": (None, "vanilla"),
    "add_position_embedding": (None, True),
    "spec": (None, "local", ["local"]),
    "moe_router_score_function": (None, "softmax", "sigmoid"),
    "position_embedding_type": (None, "learned_absolute", "rope", "yarn", "none"),
}
_BALANCING = ("sinkhorn", "quantile_balancing")
"""Kinds of load balancing that choose the experts themselves."""
_TRAINING_ONLY = {
    "moe_expert_capacity_factor": "tokens beyond an expert's capacity were dropped",
    "moe_input_jitter_eps": "the router's input was jittered",
    "fp8": "matrix products were in FP8",
    "fp4": "matrix products were in FP4",
}
"""What training did that a model in use does not do, and Hugging Face's class never."""


def fields(arguments: Arguments) -> dict[str, Any]:
    """Return what the run's model is, in the fields and options that `Family.megatron_config` has.

    Args:
        arguments: the run's, as plain values.

    Raises:
        InputError: an argument that every model has is missing.
        ConfigError: the model computes something that no family can carry.
    """
    _refuse(arguments)
    found = {**_sizes(arguments), **_parts(arguments)}
    if arguments.get("multi_latent_attention"):
        found |= _latent(arguments)
    else:
        found |= _positions(arguments)
    if arguments.get("window_size"):
        found["window_size"] = list(arguments["window_size"])
        found["window_attn_skip_freq"] = arguments.get("window_attn_skip_freq")
    if _first(arguments, "num_experts", "num_moe_experts"):
        found |= _experts(arguments, found["ffn_hidden_size"])
    return found


def readings(arguments: Arguments) -> list[Arguments]:
    """Return the arguments as each version of Megatron-LM may have taken them.

    `gpt_builders.py` hands two of them to no model, and other builders of the same arguments do.
    """
    found = [arguments]
    for name, ignored in _MAYBE_IGNORED.items():
        bears = name != "rope_scaling_factor" or arguments.get("use_rope_scaling")
        if bears and arguments.get(name) not in (None, ignored):
            found += [{**one, name: ignored} for one in found]
    return found


def only_reading(arguments: Arguments) -> Arguments:
    """Return the one thing that the arguments can mean.

    Raises:
        ConfigError: they can mean two.
    """
    both = readings(arguments)
    if len(both) == 1:
        return arguments
    names = [n for n in _MAYBE_IGNORED if len({repr(one.get(n)) for one in both}) > 1]
    raise ConfigError(
        "It is not known how the rotary positions were scaled",
        where=f"the run's arguments, {' and '.join(names)}",
        expected=" and ".join(f"{name} {_MAYBE_IGNORED[name]}" for name in names)
        + ": Megatron-LM's gpt_builders.py ignores it, other builders of its models do not",
        got=" and ".join(str(arguments[name]) for name in names),
        fix="give, by --like, a folder with the config.json that the run computed with",
    )


def training_only(arguments: Arguments) -> list[str]:
    """Say what the run's training did that the exported model does not do."""
    return [f"{why} ({name})" for name, why in _TRAINING_ONLY.items() if arguments.get(name)]


def vocabulary_multiple(arguments: Arguments) -> int | None:
    """Return what the run padded its vocabulary to a multiple of; None where it does not say."""
    divisor = arguments.get("make_vocab_size_divisible_by")
    return divisor * (arguments.get("tensor_model_parallel_size") or 1) if divisor else None


def _sizes(arguments: Arguments) -> dict[str, Any]:
    hidden, heads = _needed(arguments, "hidden_size"), _needed(arguments, "num_attention_heads")
    gated = bool(arguments.get("swiglu"))
    wide = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    grouped = arguments.get("group_query_attention")
    return {
        "num_layers": _first(arguments, "num_layers", "encoder_num_layers")
        or _needed(arguments, "num_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": arguments.get("ffn_hidden_size") or wide,
        "num_attention_heads": heads,
        "num_query_groups": (arguments.get("num_query_groups") or heads) if grouped else heads,
        "kv_channels": arguments.get("kv_channels") or hidden // heads,
        "max_sequence_length": _needed(arguments, "max_position_embeddings"),
    }


def _parts(arguments: Arguments) -> dict[str, Any]:
    gated, bias = bool(arguments.get("swiglu")), arguments.get("add_bias_linear", True)
    # The kernel that adds the bias and applies GELU in one step computes the approximation.
    fused = bias and arguments.get("bias_gelu_fusion", True)
    centred = _first(arguments, "layernorm_zero_centered_gamma", "apply_layernorm_1p")
    return {
        "normalization": arguments.get("normalization") or "LayerNorm",
        "layernorm_epsilon": _first(arguments, "layernorm_epsilon", "norm_epsilon") or 1e-5,
        "layernorm_zero_centered_gamma": bool(centred),
        "gated_linear_unit": gated,
        "activation_func": "silu" if gated else "gelu_tanh" if fused else "gelu",
        "add_bias_linear": bias,
        "add_qkv_bias": bool(arguments.get("add_qkv_bias")),
        "qk_layernorm": bool(arguments.get("qk_layernorm")),
        "share_embeddings_and_output_weights": not arguments.get(
            "untie_embeddings_and_output_weights"
        ),
    }


def _positions(arguments: Arguments) -> dict[str, Any]:
    kind = arguments.get("position_embedding_type") or "learned_absolute"
    kind = "rope" if arguments.get("use_rotary_position_embeddings") else kind
    if kind not in ("rope", "yarn"):
        return {"position_embedding_type": kind}
    return {
        "position_embedding_type": "rope",
        "rotary_base": arguments.get("rotary_base") or 10000,
        "rotary_percent": arguments.get("rotary_percent") or 1.0,
        "rotary_interleaved": bool(arguments.get("rotary_interleaved")),
        "rope_scaling": _yarn(arguments) if kind == "yarn" else _scaling(arguments),
    }


def _scaling(arguments: Arguments) -> dict[str, Any] | None:
    linear = arguments.get("rotary_seq_len_interpolation_factor")
    if not arguments.get("use_rope_scaling"):
        return {"rope_type": "linear", "factor": float(linear)} if linear else None
    return {
        "rope_type": "llama3",
        "factor": float(arguments.get("rope_scaling_factor") or _ROPE_FACTOR),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        **({"and linear": float(linear)} if linear else {}),
    }


def _yarn(arguments: Arguments) -> dict[str, Any]:
    """YaRN outside latent attention; the defaults are those of `_apply_yarn_config_from_args`."""
    factor = _first(arguments, "rotary_scaling_factor") or 1.0
    one, over = _first(arguments, "mscale"), _first(arguments, "mscale_all_dim") or 0.0
    rounded = arguments.get("yarn_correction_range_round_to_int")
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": arguments.get("yarn_original_max_position_embeddings")
        or 4096,
        "beta_fast": arguments.get("yarn_beta_fast") or 32.0,
        "beta_slow": arguments.get("yarn_beta_slow") or 1.0,
        "truncate": True if rounded is None else rounded,
        "attention_factor": magnitude(factor, 1.0 if one is None else one)
        / magnitude(factor, over),
    }


def magnitude(factor: float, weight: float) -> float:
    """The factor on cosine and sine. Source: YaRN, https://arxiv.org/abs/2309.00071, eq. 22."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _latent(arguments: Arguments) -> dict[str, Any]:
    """Multi-latent attention; what `args` lack has the defaults of `MLATransformerConfig`."""
    names = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
    missing = [name for name in names if name not in arguments]
    if missing:
        _needed(arguments, missing[0])
    defaults = {
        "rope_type": "yarn",
        "rotary_base": 10000,
        "rotary_percent": 1.0,
        "rotary_scaling_factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.0,
    }
    return {
        "multi_latent_attention": True,
        "num_query_groups": arguments["num_attention_heads"],
        # It rotates by itself: the model's own kind is "rope", or "none".
        "position_embedding_type": {"none": "rope"}.get(
            kind := _positions(arguments)["position_embedding_type"], kind
        ),
        **{name: arguments[name] for name in names},
        **defaults,
        **{name: arguments[name] for name in defaults if arguments.get(name) is not None},
    }


def _experts(arguments: Arguments, wide: int) -> dict[str, Any]:
    plain = (
        "moe_shared_expert_intermediate_size", "moe_router_num_groups", "moe_router_group_topk",
        "moe_router_topk_scaling_factor",
    )  # fmt: skip
    switches = (
        "moe_shared_expert_gate", "moe_router_pre_softmax", "moe_router_enable_expert_bias",
    )  # fmt: skip
    return {
        "num_moe_experts": _first(arguments, "num_experts", "num_moe_experts"),
        "moe_layer_freq": _first(arguments, "moe_layer_freq") or 1,
        "moe_ffn_hidden_size": arguments.get("moe_ffn_hidden_size") or wide,
        "moe_router_topk": _first(arguments, "moe_router_topk") or 2,
        "moe_router_score_function": arguments.get("moe_router_score_function") or "softmax",
        **{name: arguments.get(name) for name in plain},
        **{name: bool(arguments.get(name)) for name in switches},
    }


def _refuse(arguments: Arguments) -> None:
    for name in _NO_FAMILY:
        if arguments.get(name):
            raise _no_family(name, "off", arguments[name])
    for name, allowed in _ONLY.items():
        if arguments.get(name) not in allowed:
            words = " or ".join(repr(value) for value in allowed[1:])
            raise _no_family(name, words, arguments[name])
    kinds = arguments.get("moe_router_load_balancing_type") or ()
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind in _BALANCING:
            raise _no_family("moe_router_load_balancing_type", "one by an auxiliary loss", kind)


def _no_family(name: str, expected: str, got: object, fix: str = "") -> ConfigError:
    return ConfigError(
        "The run's model computes something that no model family here can carry",
        where=f"the run's arguments, {name}",
        expected=expected,
        got=repr(got),
        fix=fix or "export a run without it",
    )


def _first(arguments: Arguments, *names: str) -> Any:
    return next((arguments[name] for name in names if arguments.get(name) is not None), None)


def _needed(arguments: Arguments, name: str) -> Any:
    if arguments.get(name) is None:
        raise InputError(
            f"The run's arguments do not say {name}",
            where="args in the checkpoint",
            expected="the arguments that Megatron-LM keeps in each checkpoint",
            got=f"{len(arguments)} arguments, without {name}",
            fix="give the folder that Megatron-LM wrote with --save",
        )
    return arguments[name]
