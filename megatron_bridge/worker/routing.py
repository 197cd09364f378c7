"""How experts are chosen, where Megatron chooses otherwise; runs on the ranks only."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.moe.router import TopKRouter

from megatron_bridge.errors import ConfigError


class GroupMaxRouter(TopKRouter):
    """A router that scores a group of experts by its best one, as DeepSeek-V2 does.

    Megatron sums a group's best experts. All else, such as the losses that balance the experts,
    stays Megatron's. Source: `group_limited_greedy` in transformers' `modeling_deepseek_v2.py`.
    """

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        if config.moe_router_fusion:
            raise ConfigError(
                "The fused router scores a group of experts in another way than this model",
                where="megatron.moe_router_fusion",
                expected="false",
                got="true",
                fix="remove megatron.moe_router_fusion",
            )
        # Megatron asks whatever lies here for its choice, if anything does.
        self.router_replay: Any = _BestOfEachGroup()


class _BestOfEachGroup:
    layer_number: int | None = None

    def get_replay_topk(
        self, scores: torch.Tensor, topk: int, groups: int, allowed: int, default: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores and numbers of the chosen experts, both [tokens, topk]."""
        grouped = scores.view(len(scores), groups, -1)
        best = grouped.amax(-1).topk(allowed, -1).indices
        closed = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(1, best, False)
        weights, experts = grouped.masked_fill(closed[..., None], 0.0).flatten(1).topk(topk, -1)
        return weights, experts
