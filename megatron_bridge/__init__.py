"""Conversion between Hugging Face and Megatron-Core, proofs, and launches. Paths in, paths out.

Nothing here knows Prefect, the store or object storage, and Megatron-Core's source stays as it is.
(NVIDIA's package of a similar name is imported as `megatron.bridge`.) Names are loaded when used,
so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megatron_bridge.config import ParallelConfig, TrainConfig, TrainSpec
    from megatron_bridge.convert import export_hf, import_hf
    from megatron_bridge.runs import generate, logits, token_losses, train

_HOMES = {
    "ParallelConfig": "config",
    "TrainConfig": "config",
    "TrainSpec": "config",
    "export_hf": "convert",
    "generate": "runs",
    "import_hf": "convert",
    "logits": "runs",
    "token_losses": "runs",
    "train": "runs",
}

__all__ = [
    "ParallelConfig",
    "TrainConfig",
    "TrainSpec",
    "export_hf",
    "generate",
    "import_hf",
    "logits",
    "token_losses",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
