"""DeepSeek-V2 and V3: latent attention, shared experts, groups of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cases_llama import rope, toy
from family_cases import Case, Control, Rows
from torch import Tensor

NO_GROUPS = {"moe_router_num_groups": None, "moe_router_group_topk": None}


@dataclass(frozen=True)
class Reversed:
    """Every expert has the bias of another."""

    name: str = "reversed"

    def pack(self, parts: Any, shape: Any) -> Tensor:
        return parts[0].flip(0)

    def unpack(self, whole: Tensor, shape: Any) -> list[Tensor]:
        return [whole.flip(0)]


def reverse_bias(rows: Rows) -> Rows:
    return tuple(
        replace(row, layout=Reversed()) if row.mcore.endswith("expert_bias") else row
        for row in rows
    )


CASES = [
    Case("deepseek_v2, lite", toy("deepseek_v2", q_lora_rank=None, topk_method="greedy",
                                  routed_scaling_factor=1.0, rope_parameters=rope("default")), {
        "softmax after the choice": Control(fields={"moe_router_pre_softmax": False}),
        "yarn": Control(fields={"rope_type": "yarn", "rotary_scaling_factor": 5.0}),
    }),
    Case("deepseek_v2", toy("deepseek_v2"), {
        "groups scored as Megatron does": Control(fields={"group_score": "sum"}),
        "no groups": Control(fields={**NO_GROUPS, "group_score": "sum"}),
        "mscale_all_dim 0": Control(fields={"mscale_all_dim": 0.0}),
        "no yarn": Control(fields={"rope_type": "rope"}),
    }),
    Case("deepseek_v3", toy("deepseek_v3"), {
        "no groups": Control(fields=NO_GROUPS),
        "bias of the wrong expert": Control(rows=reverse_bias),
        "no scaling factor": Control(fields={"moe_router_topk_scaling_factor": 1.0}),
        "mscale_all_dim 0": Control(fields={"mscale_all_dim": 0.0}),
    }),
]  # fmt: skip
