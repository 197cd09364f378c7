"""Repairs of faults in Megatron-Core that a machine of any kind may meet.

Seen in 0.16.1; what a later version has mended is left as it is.
"""

from __future__ import annotations

import queue
from typing import Any


def repair() -> None:
    """Install the repairs; call once in each rank."""
    _resume_torch_adamw()
    _save_without_a_manager()
    _build_latent_attention()


def _resume_torch_adamw() -> None:
    """Let the distributed optimizer load its state where torch's AdamW does the work.

    Without Transformer Engine and Apex it wants a `step` among the loaded tensors of each
    parameter, where there is none or that of the state before the load; and it lets all parameters
    share one step tensor, which AdamW then raises once a parameter.
    """
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    optimizer_type: Any = DistributedOptimizer
    original = optimizer_type._set_main_param_and_optimizer_states

    def with_step(self: Any, model_param: Any, tensors: dict[str, Any]) -> None:
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        if "step" in state:
            state["step"] = state["step"].clone()
            tensors = {**tensors, "step": state["step"]}
        original(self, model_param, tensors)

    optimizer_type._set_main_param_and_optimizer_states = with_step


def _save_without_a_manager() -> None:
    """Give a synchronous save a plain queue.

    Megatron starts a manager process for a queue that a synchronous save fills and reads in one
    process; that manager would survive a killed rank.
    """
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    internals: Any = filesystem_async
    internals._results_queue = queue.Queue()


def _build_latent_attention() -> None:
    """Let latent attention be built where Transformer Engine is missing.

    0.16.1 takes the engine for present when its stand-ins import, and asks `isinstance` of one.
    """
    from megatron.core.transformer import multi_latent_attention

    internals: Any = multi_latent_attention
    if not isinstance(getattr(internals, "TELinear", None), type):
        internals.HAVE_TE = False
