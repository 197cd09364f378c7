"""Sizes that `config.json` states: of layers, heads, feed-forward layers and experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Config = Mapping[str, Any]

UNSAID = object()
"""The value of a fact that the file leaves to a default of Hugging Face's class."""

LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "n_embed")
HEADS = ("num_attention_heads", "n_head")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def first(config: Config, *names: str, default: Any = UNSAID) -> Any:
    """Return the first of these entries that is there and not null."""
    return next((config[name] for name in names if config.get(name) is not None), default)


def alike(values: Sequence[Any]) -> Any:
    """Return the value that all layers share, else the list."""
    return values[0] if values and all(value == values[0] for value in values) else list(values)


def layers(config: Config) -> int:
    """The number of layers."""
    return int(first(config, *LAYERS))


def hidden(config: Config) -> int:
    """The size of the residual stream."""
    return int(first(config, *HIDDEN))


def heads(config: Config) -> int:
    """The number of attention heads."""
    default = 8 if config["model_type"] == "gemma3_text" else UNSAID
    return int(first(config, *HEADS, default=default))


def head(config: Config) -> Any:
    """The size of a head."""
    if config["model_type"].startswith("gemma") and config.get("head_dim") is None:
        return UNSAID
    return first(config, "head_dim", "kv_channels", default=hidden(config) // heads(config))


def sparse(config: Config) -> list[bool]:
    """Whether each layer has experts."""
    count, kind = layers(config), config["model_type"]
    if experts(config) is None:
        return [False] * count
    if kind.startswith("deepseek"):
        dense = config.get("first_k_dense_replace", 3 if kind == "deepseek_v3" else 0)
        return [layer >= dense for layer in range(count)]
    step, dense_layers = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    return [layer not in dense_layers and (layer + 1) % step == 0 for layer in range(count)]


def experts(config: Config) -> int | None:
    """The number of experts of a layer, or None."""
    found = first(config, *EXPERTS, default=None)
    return None if found is None else int(found)


def read(config: Config) -> dict[str, Any]:
    """Return the facts about sizes."""
    facts: dict[str, Any] = {"layers": layers(config), "hidden size": hidden(config)}
    if is_latent(config):
        facts |= _latent(config)
    else:
        facts["attention heads"] = heads(config)
        facts["key-value heads"] = _key_value_heads(config)
        facts["head size"] = head(config)
    wide = _feed_forward(config)
    has = sparse(config)
    facts["feed-forward size"] = alike([None if moe else wide for moe in has])
    if any(has):
        facts["layers with experts"] = [layer for layer, moe in enumerate(has) if moe]
        facts["experts"] = experts(config)
        facts["experts a token"] = config["num_experts_per_tok"]
        narrow = first(config, "moe_intermediate_size", "intermediate_size")
        facts["expert size"] = narrow
        shared = config.get("shared_expert_intermediate_size")
        if config["model_type"].startswith("deepseek"):
            v3 = config["model_type"] == "deepseek_v3"
            shared = narrow * config.get("n_shared_experts", 1 if v3 else 2)
        facts["shared expert size"] = shared or None
    return facts


def is_latent(config: Config) -> bool:
    """True for multi-latent attention."""
    return config.get("kv_lora_rank") is not None


def _latent(config: Config) -> dict[str, Any]:
    """Rows of the projections of multi-latent attention."""
    count, rotary = heads(config), config["qk_rope_head_dim"]
    plain, value, latent = config["qk_nope_head_dim"], config["v_head_dim"], config["kv_lora_rank"]
    return {
        "query rows": count * (plain + rotary),
        "key and value rows": count * (plain + value),
        "query latent": config.get("q_lora_rank", 1536),
        "key-value latent": latent,
        "rotary key size": rotary,
    }


def _key_value_heads(config: Config) -> Any:
    kind = config["model_type"]
    if kind == "falcon" and config.get("new_decoder_architecture"):
        return first(config, "num_kv_heads", default=heads(config))
    if kind in ("falcon", "gpt_bigcode"):
        return 1 if config.get("multi_query", True) else heads(config)
    if kind == "chatglm":
        shared = config.get("multi_query_attention")
        return config["multi_query_group_num"] if shared else heads(config)
    if kind.startswith("gemma") and config.get("num_key_value_heads") is None:
        return UNSAID
    return first(config, "num_key_value_heads", default=heads(config))


def _feed_forward(config: Config) -> int:
    names = ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim")
    wide = int(first(config, *names, default=4 * hidden(config)))
    # Qwen 1 counts gate and up together.
    return wide // 2 if config["model_type"] == "qwen" else wide
