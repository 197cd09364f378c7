"""Positions that `config.json` states: rotary frequencies, scale of scores, windows, tables."""

from __future__ import annotations

import math
from typing import Any

from megatron_bridge.facts.sizes import (
    UNSAID,
    Config,
    alike,
    first,
    head,
    is_latent,
    layers,
)

_LEARNED = ("gpt2", "gpt_bigcode", "opt")
_BASES = {"cohere": 500000.0, "gemma3_text": 1e6}
_SHARES = {"glm": 0.5, "glm4": 0.5, "chatglm": 0.5, "gpt_neox": 0.25}
"""Rotary base and rotated share of a head where a type's default is neither 10000 nor 1."""
_ALL_LAYERS = ("mistral", "mixtral", "starcoder2", "phi3")
"""Types that have the window on every layer, unless the file lists the layers."""
_ON_DEMAND = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
_BY_PATTERN = {"gemma2": 2, "gemma3_text": 6}
"""Every so many layers one without a window."""


def read(config: Config) -> dict[str, Any]:
    """Return the facts about positions."""
    kind = config["model_type"]
    alibi = _has_alibi(config)
    facts: dict[str, Any] = {
        "ALiBi": alibi,
        "window": alike(windows(config)),
        "scale of scores": _scale(config),
        "learned positions": None,
    }
    if kind in _LEARNED:
        # OPT's table begins with two rows that are never looked up.
        extra = 2 if kind == "opt" else 0
        facts["learned positions"] = extra + first(config, "n_positions", "max_position_embeddings")
        facts["first position"] = extra
    if alibi or kind in _LEARNED:
        return facts | {"rotary frequencies": None}
    given, base, dim = rotary(config)
    if dim is UNSAID:
        return facts
    longest = first(config, "max_position_embeddings", "seq_length", default=2048)
    facts["rotary frequencies"] = frequencies(given, base, dim, 1, longest)
    facts["rotary frequencies at twice the length"] = frequencies(
        given, base, dim, 2 * longest, longest
    )
    facts["factor on cosine and sine"] = _factor(given, longest)
    if kind == "gemma3_text":
        local = (config.get("rope_parameters") or {}).get("sliding_attention") or {}
        local_base = local.get("rope_theta") or config.get("rope_local_base_freq") or 1e4
        facts["rotary frequencies under a window"] = _plain(local_base, dim)
    return facts


def rotary(config: Config) -> tuple[dict[str, Any], float, Any]:
    """Return the entries of the scaling, the rotary base, and the rotated part of a head."""
    kind = config["model_type"]
    given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if kind == "gemma3_text":
        given = dict(given.get("full_attention") or config.get("rope_scaling") or {})
    given["rope_type"] = given.get("rope_type") or given.get("type") or "default"
    if kind == "phi3" and given["rope_type"] in ("su", "yarn"):
        given["rope_type"] = "longrope"
    original = config.get("original_max_position_embeddings")
    given.setdefault("original_max_position_embeddings", original)
    base = (
        given.get("rope_theta")
        or first(config, "rope_theta", "rotary_emb_base", default=None)
        or _BASES.get(kind, 10000.0) * (config.get("rope_ratio") or 1)
    )
    if is_latent(config):
        return given, base, config["qk_rope_head_dim"]
    share = given.get("partial_rotary_factor") or first(
        config, "partial_rotary_factor", "rotary_pct", default=_SHARES.get(kind, 1.0)
    )
    size = head(config)
    return given, base, size if size is UNSAID else int(size * share)


def frequencies(
    given: dict[str, Any], base: float, dim: int, length: int, longest: int
) -> list[float]:
    """Return inverse frequencies, dim / 2 of them, at a length of sequence.

    Sources: the papers of each scaling, as Hugging Face's `modeling_rope_utils.py` reads them.
    """
    plain, kind = _plain(base, dim), given["rope_type"]
    factor: Any = given.get("factor")
    original = given.get("original_max_position_embeddings") or longest
    if kind == "linear":
        return [value / factor for value in plain]
    if kind == "dynamic":
        stretch = factor * max(length, longest) / longest - (factor - 1)
        return _plain(base * stretch ** (dim / (dim - 2)), dim)
    if kind == "longrope":
        factors = given["long_factor" if length > original else "short_factor"]
        return [value / by for value, by in zip(plain, factors, strict=True)]
    if kind == "llama3":
        low, high = given["low_freq_factor"], given["high_freq_factor"]
        turns = [original * value / (2 * math.pi) for value in plain]
        kept = [min(max((n - low) / (high - low), 0.0), 1.0) for n in turns]
    elif kind == "yarn":
        kept = _kept_by_yarn(given, base, dim, original)
        factor = factor or longest / original
    else:
        return plain
    return [v * share + v / factor * (1 - share) for v, share in zip(plain, kept, strict=True)]


def windows(config: Config) -> list[int | None]:
    """Return how many tokens each layer sees, the token itself among them; None for all."""
    kind, count, size = config["model_type"], layers(config), config.get("sliding_window")
    has = [kind in _ALL_LAYERS] * count
    if kind in _ON_DEMAND:
        size = config.get("sliding_window", 4096)
        full = config.get("max_window_layers", 28)
        from_layer = 0 if kind == "qwen3_moe" else full
        has = [bool(config.get("use_sliding_window")) and i >= from_layer for i in range(count)]
    if kind in _BY_PATTERN:
        size = config.get("sliding_window", 4096)
        every = config.get("sliding_window_pattern") or _BY_PATTERN[kind]
        has = [bool((layer + 1) % every) for layer in range(count)]
    listed = config.get("layer_types")
    if listed and (any(has) or kind in _BY_PATTERN):
        has = [name == "sliding_attention" for name in listed]
    return [size if size and one else None for one in has]


def _plain(base: float, dim: int) -> list[float]:
    return [base ** (-i / dim) for i in range(0, dim, 2)]


def _kept_by_yarn(given: dict[str, Any], base: float, dim: int, original: int) -> list[float]:
    """How much of each plain frequency stays: all of the fast ones, none of the slow ones."""

    def index(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = index(given.get("beta_fast") or 32), index(given.get("beta_slow") or 1)
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low or 0.001
    return [1 - min(max((i - low) / span, 0.0), 1.0) for i in range(dim // 2)]


def _factor(given: dict[str, Any], longest: int) -> float:
    kind, original = given["rope_type"], given.get("original_max_position_embeddings") or longest
    if kind not in ("yarn", "longrope"):
        return 1.0
    if given.get("attention_factor"):
        return float(given["attention_factor"])
    stretch = longest / original
    if kind == "longrope":
        return math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    factor, one, over = given.get("factor"), given.get("mscale"), given.get("mscale_all_dim")
    factor = factor or stretch
    return (
        _magnitude(factor, one) / _magnitude(factor, over) if one and over else _magnitude(factor)
    )


def _magnitude(factor: float, weight: float = 1.0) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _scale(config: Config) -> Any:
    kind = config["model_type"]
    if kind in ("gemma2", "gemma3_text"):
        return float(config.get("query_pre_attn_scalar", 256)) ** -0.5
    if not is_latent(config):
        size = head(config)
        return size if size is UNSAID else size**-0.5
    given, _, _ = rotary(config)
    over = given.get("mscale_all_dim")
    more = _magnitude(given["factor"], over) if given["rope_type"] == "yarn" and over else 1.0
    size = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    return float(more * more * size**-0.5)


def _has_alibi(config: Config) -> bool:
    kind = config["model_type"]
    if kind == "baichuan":
        # The 13B models, which have ALiBi, have no table of rotary positions to bound.
        return "max_position_embeddings" not in config
    return kind == "bloom" or (kind == "falcon" and bool(config.get("alibi")))
