"""A model of random weights from a folder with a config and a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tasks.core import sources
from tasks.core.errors import InputError
from tasks.model import folder
from tasks.model.quiet import quiet


def make(path: Path, seed: int, out: Path, progress: Callable[..., None]) -> dict[str, Any]:
    """Initialise the model as transformers does, in float32; the tokenizer's files as they are.

    Args:
        path: a folder with config.json and a tokenizer.
        seed: the same seed gives the same weights, with the same version of torch.
        out: the folder to write.
        progress: the stage's.

    Raises:
        InputError: transformers knows no such model.
    """
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, trust_remote_code=False
            )
    except (ValueError, OSError) as error:
        raise InputError(
            "transformers cannot build a model from this configuration", where=path,
            expected="a causal language model that transformers itself knows", got=error,
        ) from error  # fmt: skip
    with quiet():
        model.save_pretrained(out)
    folder.finish_config(out)
    for file in folder.taken(path):
        if file.name != "config.json":
            sources.fetch(str(file), out / file.name, progress)
    return {"weights": f"random, seed {seed}", "left_out": folder.left_out(path)}
