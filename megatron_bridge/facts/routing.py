"""What `config.json` states of the choice of experts, shown on a sample of router logits."""

from __future__ import annotations

import math
from typing import Any

from megatron_bridge.facts.sizes import Config, experts

TOKENS = 3


def sample(count: int) -> list[list[float]]:
    """Return router logits of a few tokens, [tokens][experts]."""
    return [
        [2 * math.sin(1.3 * (expert + 1) * (token + 1)) for expert in range(count)]
        for token in range(TOKENS)
    ]


def read(config: Config) -> dict[str, Any]:
    """Return the experts that the sample's tokens go to, and their weights."""
    count = experts(config)
    return (
        {} if count is None else {"routing of a sample": [_route(t, config) for t in sample(count)]}
    )


def weights(chosen: dict[int, float]) -> list[list[float]]:
    """Return experts and weights in the order of the experts."""
    return [[expert, chosen[expert]] for expert in sorted(chosen)]


def _route(logits: list[float], config: Config) -> list[list[float]]:
    kind, topk = config["model_type"], config["num_experts_per_tok"]
    if kind == "deepseek_v3":
        scores = [1 / (1 + math.exp(-x)) for x in logits]
        renormalised, factor = config.get("norm_topk_prob", True), 2.5
        groups, allowed, best = config.get("n_group", 8), config.get("topk_group", 4), 2
    else:
        total = math.fsum(map(math.exp, logits))
        scores = [math.exp(x) / total for x in logits]
        renormalised, factor = config.get("norm_topk_prob", kind == "mixtral"), 1.0
        limited = config.get("topk_method", "greedy") == "group_limited_greedy"
        groups, allowed = (config["n_group"], config["topk_group"]) if limited else (None, None)
        best = 1
    factor = config.get("routed_scaling_factor", factor)
    open_experts = _open(scores, groups, allowed, best) if groups else range(len(scores))
    chosen = sorted(open_experts, key=lambda expert: -scores[expert])[:topk]
    total = math.fsum(scores[expert] for expert in chosen) if renormalised else 1.0
    return weights({expert: scores[expert] / total * factor for expert in chosen})


def _open(scores: list[float], groups: int, allowed: int, best: int) -> list[int]:
    """The experts of the groups whose `best` experts score highest together."""
    size = len(scores) // groups
    members = [range(group * size, (group + 1) * size) for group in range(groups)]
    by_score = sorted(members, key=lambda m: -sum(sorted(scores[e] for e in m)[-best:]))
    return [expert for group in by_score[:allowed] for expert in group]
