"""A GGUF file as a Hugging Face folder: weights in float32, tokenizer, chat template.

The bridge reads the file; here its tensors are written, a block of rows at a time.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from megatron_bridge import hf, mapping
from megatron_bridge.errors import MappingError
from megatron_bridge.side import Job, Side
from megatron_bridge.sources import source as sources
from megatron_bridge.sources.safetensors_file import CODES
from megatron_bridge.sources.stored import blocks, raw


def convert(path: Path, out: Path, progress: Callable[..., None]) -> dict[str, Any]:
    """Write the folder that `AutoModelForCausalLM` and `AutoTokenizer` load.

    Returns:
        weights (the file's number formats, most used first) and name (the model's own).

    Raises:
        InputError: the file is damaged, or its architecture or tokenizer is not supported.
        MappingError: its tensors are not those of a model of its `config.json`.
    """
    with sources.opened(path) as source, hf.Weights(source) as weights:
        check(source, weights)
        for file in hf.carried_files(source.files):
            shutil.copyfile(file, out / file.name)
        config = json.loads((out / "config.json").read_text(encoding="utf-8"))
        text = json.dumps({**config, "dtype": "float32"}, indent=2, sort_keys=True)
        (out / "config.json").write_text(text + "\n", encoding="utf-8")
        write_weights(weights, out, progress)
        formats: Counter[str] = Counter()
        for name in weights.names:
            tensor = weights.stored(name)
            formats[CODES.get(tensor.stored_as, tensor.stored_as)] += torch.Size(
                tensor.shape
            ).numel()
    used = ", ".join(name for name, _ in formats.most_common())
    return {"weights": f"dequantised from {used}", "name": source.name or None}


def check(source: sources.Source, weights: hf.Weights) -> None:
    """Refuse a file whose tensors are not exactly those that its `config.json` names."""
    one = Side(Job(source.files, source))
    try:
        problems = mapping.check(one.model.family, one.model.shape, hf_names=weights.names)
        if problems:
            raise MappingError(
                f"{len(problems)} tensors of the GGUF file cannot be mapped", where=source.weights,
                expected=f"those of a {one.model.family.model_type} model, each once",
                got="; ".join(problems[:8]), fix="start from the model's Hugging Face folder",
            )  # fmt: skip
        for bound in one.model.bounds:
            one.packed_spec(bound)
    finally:
        one.close()


def write_weights(weights: hf.Weights, out: Path, progress: Callable[..., None]) -> None:
    """Write every tensor in float32 as safetensors."""
    names = weights.names
    shapes = {name: weights.stored(name).shape for name in names}
    places = hf.prepare(out, [hf.TensorSpec(n, torch.float32, shapes[n]) for n in names])
    for done, name in enumerate(names):
        progress(done, len(names), unit="tensors", note=name)
        tensor, place = weights.stored(name), places[name]
        with (out / place.file).open("r+b") as file:
            for start, stop in blocks(tensor):
                values = tensor.read(start, stop).float().contiguous()
                offset = place.offset + start * (values[0].nbytes if start else 0)
                hf.write_at(file.fileno(), offset, raw(values))
    progress(len(names), len(names), unit="tensors")
