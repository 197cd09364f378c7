"""What `config.json` says of rotary positions, in either of its spellings.

transformers 5 writes `rope_parameters`; before it, `rope_theta`, `partial_rotary_factor` and
`rope_scaling` lay apart. The formulas behind the kinds are in `worker/rope.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from megatron_bridge.errors import ConfigError

NEEDED = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}


def rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return rotary base, rotated share of each head, and scaling.

    Raises:
        ConfigError: a kind of rotary scaling that is not supported, or an incomplete one.
    """
    given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = given.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
    share = given.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0
    kind = given.pop("rope_type", None) or given.pop("type", None) or "default"
    given.pop("type", None)
    kind = {"su": "longrope"}.get(kind, kind)  # the name in Phi-3's first files
    return {
        "position_embedding_type": "rope",
        "rotary_base": base,
        "rotary_percent": share,
        "rope_scaling": scaling(kind, given, config),
    }


def scaling(
    kind: str, given: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return `Options.rope_scaling`: the kind and its constants, all written out.

    Args:
        kind: `rope_type`.
        given: the other entries of `rope_parameters`.
        config: all of `config.json`.
    """
    if kind not in NEEDED:
        raise ConfigError(
            "This rotary scaling is not supported",
            where="config.json, rope_parameters",
            expected=" or ".join(map(repr, NEEDED)),
            got=repr(kind),
            fix="convert a model with one of these",
        )
    given = dict(given)
    longest: Any = config.get("max_position_embeddings")
    if kind in ("llama3", "yarn", "longrope"):
        inside = given.get("original_max_position_embeddings")
        original = config.get("original_max_position_embeddings") or inside or longest
        given["original_max_position_embeddings"] = original
        if given.get("factor") is None and kind != "llama3":
            given["factor"] = longest / original
    missing = [key for key in NEEDED[kind] if given.get(key) is None]
    if missing:
        raise ConfigError(
            f"The {kind} rotary scaling is incomplete",
            where="config.json, rope_parameters",
            expected=", ".join(NEEDED[kind]),
            got=f"no {', '.join(missing)}",
            fix="use the config.json that belongs to the weights",
        )
    if kind == "default":
        return None
    constants = {"rope_type": kind} | {key: given[key] for key in NEEDED[kind]}
    if kind == "dynamic":
        constants["max_position_embeddings"] = longest
    if kind == "yarn":
        constants["beta_fast"] = given.get("beta_fast") or 32.0
        constants["beta_slow"] = given.get("beta_slow") or 1.0
        constants["truncate"] = given.get("truncate", True)
        constants["attention_factor"] = given.get("attention_factor") or _yarn_factor(given)
    if kind == "longrope":
        constants["attention_factor"] = given.get("attention_factor") or _longrope_factor(
            given["factor"], given["original_max_position_embeddings"]
        )
    return constants


def _yarn_factor(given: Mapping[str, Any]) -> float:
    """The factor on cosine and sine. Source: YaRN, https://arxiv.org/abs/2309.00071, eq. 22."""

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(given["factor"]) + 1.0 if given["factor"] > 1 else 1.0

    weight, over = given.get("mscale"), given.get("mscale_all_dim")
    return scale(weight) / scale(over) if weight and over else scale(1.0)


def _longrope_factor(stretch: float, original: int) -> float:
    """The factor on cosine and sine. Source: LongRoPE, https://arxiv.org/abs/2402.13753."""
    return math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
