"""The independent reference: transformers' model under torch's own AdamW."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import torch
import toys

from megatron_bridge.config import TrainConfig


def batches(prefix: Path, config: TrainConfig, cache: Path) -> list[torch.Tensor]:
    """Tokens of each global batch, [global batch, sequence + 1], from Megatron's GPTDataset."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import blended_megatron_dataset_builder as builder
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    from types import SimpleNamespace

    facts = SimpleNamespace(eod=toys.END_OF_DOCUMENT, vocab_size=toys.VOCAB, unique_identifiers={})
    dataset = builder.BlendedMegatronDatasetBuilder(
        GPTDataset,
        [config.steps * config.global_batch_size, 0, 0],
        lambda: True,
        GPTDatasetConfig(
            random_seed=config.seed,
            sequence_length=config.sequence_length,
            blend_per_split=[([str(prefix)], None), None, None],
            path_to_cache=str(cache),
            tokenizer=facts,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
        ),
    ).build()[0]
    samples = [
        torch.cat([dataset[i]["tokens"], dataset[i]["labels"][-1:]])
        for i in range(config.steps * config.global_batch_size)
    ]
    return list(torch.stack(samples).split(config.global_batch_size))


def losses(
    model_folder: Path,
    data: list[torch.Tensor],
    config: TrainConfig,
    *,
    decay_norms: bool = False,
    beta2: float | None = None,
    clip: bool = True,
) -> list[float]:
    """Losses of a plain training loop with a cosine schedule; the switches are the controls."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": config.weight_decay if decay_norms else 0.0},
        ],
        lr=config.learning_rate,
        betas=(config.adam_beta1, beta2 or config.adam_beta2),
        eps=config.adam_eps,
    )
    found = []
    for step, batch in enumerate(data):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * 0.5 * (1 + math.cos(math.pi * step / len(data)))
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_grad)
        optimizer.step()
        found.append(loss.item())
    return found
