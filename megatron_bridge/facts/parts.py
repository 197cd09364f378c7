"""Parts that `config.json` states: norms, biases, activation, soft caps, tied embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from megatron_bridge.facts.sizes import UNSAID, Config, first, hidden, is_latent

LOGIT = 100.0
"""A logit to put through what a model does to its output."""
POINTS = (-1.3, 0.7, 2.1)
"""Where activations are compared."""

NORMALISED = "output rows are normalised"

EPSILONS = (
    "rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "layernorm_epsilon", "norm_epsilon",
)  # fmt: skip
_DEFAULTS = {
    "gpt2": ("gelu_new", 1e-5),
    "gpt_bigcode": ("gelu_pytorch_tanh", 1e-5),
    "starcoder2": ("gelu_pytorch_tanh", 1e-5),
    "falcon": ("gelu", 1e-5),
    "bloom": ("gelu_pytorch_tanh", 1e-5),
    "opt": ("relu", 1e-5),
    "gpt_neox": ("gelu", 1e-5),
    "cohere": ("silu", 1e-5),
    "phi3": ("silu", 1e-5),
    "glm": ("silu", 1.5625e-07),
    "glm4": ("silu", 1.5625e-07),
    "chatglm": ("silu", 1e-5),
}
"""Activation and epsilon by default, where they are not silu and 1e-6."""
_NORMED_QUERIES = ("qwen3", "qwen3_moe", "gemma3_text")
_TIED = (
    "gpt2", "gpt_bigcode", "starcoder2", "falcon", "bloom", "opt",
    "gemma", "gemma2", "gemma3_text", "cohere",
)  # fmt: skip
"""Types whose class ties the embeddings unless the file says otherwise."""


def read(config: Config) -> dict[str, Any]:
    """Return the facts about parts."""
    kind = config["model_type"]
    facts = {
        "norm": _norm(config),
        "norm epsilon": first(config, *EPSILONS, default=_DEFAULTS.get(kind, (None, 1e-6))[1]),
        "embeddings tied": config.get("tie_word_embeddings", kind in _TIED),
        "activation": _activation(config),
        "soft cap of attention": _cap(config, "attn_logit_softcapping", 50.0),
        "a logit of 100 becomes": _logit(config),
        NORMALISED: kind == "baichuan" and _is_second(config),
        "bias of query, key and value": _biases(config)[0],
        "bias of the attention's output": _biases(config)[1],
        "bias of the MLP": _biases(config)[2],
    }
    if kind != "bloom":  # it has a norm in this place
        factor = math.sqrt(hidden(config)) if kind.startswith("gemma") else 1.0
        facts["factor on embeddings"] = factor
    if not is_latent(config):
        asked = config.get("use_qk_norm") or config.get("qk_layernorm")
        facts["norm on query and key"] = kind in _NORMED_QUERIES or bool(asked)
    return facts


def _is_second(config: Config) -> bool:
    """Baichuan2 has a larger vocabulary and one more entry."""
    return config["vocab_size"] >= 125696 or "z_loss_weight" in config


def _norm(config: Config) -> str:
    if config["model_type"] == "chatglm":
        return "RMSNorm" if config.get("rmsnorm", True) else "LayerNorm"
    rms = config["model_type"] in ("qwen", "phi3") or "rms_norm_eps" in config
    return "RMSNorm" if rms else "LayerNorm"


def _biases(config: Config) -> tuple[bool, bool, bool]:
    """Of query, key and value; of the attention's output; of the MLP."""
    kind, get = config["model_type"], config.get
    one_switch = {
        "gpt2": True,
        "gpt_bigcode": True,
        "bloom": True,
        "starcoder2": get("use_bias", True),
        "falcon": get("bias", False),
        "opt": get("enable_bias", True),
    }
    if kind in one_switch:
        return (bool(one_switch[kind]),) * 3
    attention = bool(get("attention_bias", False))
    special = {
        "gpt_neox": (get("attention_bias", True), get("attention_bias", True), True),
        "internlm": (get("bias", True), get("bias", True), False),
        "qwen": (True, not get("no_bias", True), not get("no_bias", True)),
        "qwen2": (True, False, False),
        "qwen2_moe": (get("qkv_bias", True), False, False),
        "glm": (attention, False, False),
        "glm4": (attention, False, False),
        "chatglm": (
            get("add_qkv_bias") or get("add_bias_linear"),
            get("add_bias_linear"),
            get("add_bias_linear"),
        ),
    }
    found = special.get(kind, (attention, attention, get("mlp_bias", False)))
    return bool(found[0]), bool(found[1]), bool(found[2])


def _activation(config: Config) -> list[float] | object:
    names = ("hidden_act", "activation_function", "activation")
    name = first(config, *names, default=_DEFAULTS.get(config["model_type"], ("silu",))[0])
    if config["model_type"].startswith("gemma"):
        # The first files say "gelu" under the older name, and mean the approximation.
        name = config.get("hidden_activation") or "gelu_pytorch_tanh"
    function = _FUNCTIONS.get(str(name))
    return [function(x) for x in POINTS] if function else UNSAID


def _silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def _gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def _gelu_tanh(x: float) -> float:
    return x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "silu": _silu,
    "swish": _silu,
    "relu": lambda x: max(x, 0.0),
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
}


def _cap(config: Config, name: str, gemma2: float) -> float | None:
    default = gemma2 if config["model_type"] == "gemma2" else None
    found: float | None = config.get(name, default)
    return found


def _logit(config: Config) -> float:
    scale = config.get("logit_scale", 0.0625) if config["model_type"] == "cohere" else 1.0
    cap = _cap(config, "final_logit_softcapping", 30.0)
    value = LOGIT * scale
    return cap * math.tanh(value / cap) if cap else value
