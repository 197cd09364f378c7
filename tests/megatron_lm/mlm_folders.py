"""Megatron-LM's checkpoints for tests: the frozen ones, loaded by torch, and made-up small ones."""

from __future__ import annotations

import pickle
import types
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch

DATA = Path(__file__).parents[1] / "data" / "megatron_lm"
TORCH = ("dense", "chunks", "sharded", "experts", "half", "tied")


def iteration(name: str) -> Path:
    """A frozen checkpoint's own folder."""
    return DATA / name / "iter_0000003"


class _Unpickler(pickle.Unpickler):
    """Python's own, with Megatron's enums as tuples: the installed version may lack some."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("megatron."):
            return lambda *args: (module, name, args)
        return super().find_class(module, name)


def load(name: str, rank: str, file: str = "model_optim_rng.pt") -> Any:
    """One rank's file, by `torch.load`: these files are ours."""
    module = types.SimpleNamespace(Unpickler=_Unpickler, load=pickle.load, __name__="pickle")
    path = iteration(name) / rank / file
    return torch.load(path, weights_only=False, pickle_module=module)


def save(folder: Path, ranks: dict[str, dict[str, torch.Tensor]], **arguments: Any) -> Path:
    """A made-up checkpoint: a model for each `mp_rank_*` folder."""
    for rank, model in ranks.items():
        (folder / rank).mkdir(parents=True)
        tree = {"args": Namespace(**arguments), "iteration": 5, "model": model}
        torch.save(tree, folder / rank / "model_optim_rng.pt")
    return folder
