"""Toy models and toy tokens: nothing in them is a power of two."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

VOCAB, END_OF_DOCUMENT = 331, 330


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """At these shapes threads only wait for each other, here and on the ranks."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


def hf_model(kind: str, folder: Path, **changes: Any) -> Any:
    """Save a random model of family `kind` with `save_pretrained`; return it."""
    import transformers

    config_type = {
        "llama": transformers.LlamaConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
        "mixtral": transformers.MixtralConfig,
        "deepseek_v3": transformers.DeepseekV3Config,
    }[kind]
    sizes = {
        "hidden_size": 72,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 20,
        "intermediate_size": 92,
        "vocab_size": VOCAB,
        "max_position_embeddings": 130,
        "tie_word_embeddings": kind == "qwen2",
        "eos_token_id": END_OF_DOCUMENT,
        "bos_token_id": None,
        "pad_token_id": None,
    }
    model = transformers.AutoModelForCausalLM.from_config(config_type(**{**sizes, **changes}))
    model = model.float().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                weight.copy_(0.1 * noise + (1.0 if "norm" in name else 0.0))
            else:
                weight.copy_(noise * (0.4 if "embed" in name else 1.2 / weight.shape[-1] ** 0.5))
    model.save_pretrained(folder)
    return model


def indexed_dataset(prefix: Path, documents: int = 60) -> None:
    """Write documents of 20 and more random tokens with Megatron's own builder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    import numpy

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=numpy.uint16)
    generator = torch.Generator().manual_seed(1)
    for number in range(documents):
        length = 20 + number
        # Skewed, so that there is something to learn.
        ids = (torch.rand(length, generator=generator) ** 3 * END_OF_DOCUMENT).long()
        document = torch.cat([ids, torch.tensor([END_OF_DOCUMENT])])
        builder.add_document(document.numpy(), [length + 1])
    builder.finalize(f"{prefix}.idx")
