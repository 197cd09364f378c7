"""Runs under torchrun: logits of several checkpoints in several layouts, in one start of ranks."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from megatron.core import parallel_state
from safetensors.torch import save_file

from megatron_bridge import checkpoint, families
from megatron_bridge.config import ParallelConfig
from megatron_bridge.worker import checkpoints, logits, model, rank


def work(text: str) -> None:
    spec = json.loads(text)
    for number, layout in enumerate(spec["layouts"]):
        parallel = ParallelConfig(**layout)
        if number == 0:
            rank.join(parallel, "float32")
        else:
            parallel_state.destroy_model_parallel()
            rank.form_groups(parallel)
        for name, load in spec["checkpoints"].items():
            folder = Path(spec["root"]) / name
            config = families.read_config(folder / checkpoint.HF_FILES)
            family = families.get(config["model_type"])
            gpt = model.build(family.megatron_config(config), parallel, vocab_size=331)
            if load:
                checkpoints.load_weights(gpt, folder)
            gpt.eval()
            with torch.no_grad():
                part = logits.forward(gpt, torch.tensor(spec["tokens"]))
            if part is not None:
                whole = logits.gather_from_tensor_model_parallel_region(part)[..., :331]
                if logits.is_writer():
                    out = Path(spec["root"]) / f"{name}.{number}.safetensors"
                    save_file({"logits": whole.contiguous()}, out)
    rank.leave()


if __name__ == "__main__":
    rank.run(work)
