"""Training samples: Megatron's GPTDataset, read in an order that a resumed run goes on with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

from megatron_bridge.config import TrainConfig, TrainSpec
from megatron_bridge.errors import InputError


class TokenizerFacts:
    """What GPTDataset asks of a tokenizer; the tokens are there already."""

    def __init__(self, end_of_document: int, vocab_size: int) -> None:
        self.eod = end_of_document
        self.vocab_size = vocab_size
        self.unique_identifiers = {"eod": end_of_document, "vocab_size": vocab_size}


def build(spec: TrainSpec, vocab_size: int) -> GPTDataset:
    """Return the training split as samples of `sequence_length` tokens, enough for all steps.

    Documents and samples are shuffled by the seed. When the split is too small, Megatron goes
    through it again, in another order. The index is built on rank 0, in the run's folder.
    """
    config = GPTDatasetConfig(
        random_seed=spec.config.seed,
        sequence_length=spec.config.sequence_length,
        blend_per_split=[([str(spec.train_data)], None), None, None],
        path_to_cache=str(spec.run_dir / "index"),
        tokenizer=TokenizerFacts(spec.end_of_document, vocab_size),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    samples = spec.config.steps * spec.config.global_batch_size
    builder = BlendedMegatronDatasetBuilder(GPTDataset, [samples, 0, 0], lambda: True, config)
    dataset: GPTDataset = builder.build()[0]
    return dataset


def tokens_per_epoch(dataset: GPTDataset) -> int:
    """Number of tokens in the split."""
    return int(dataset.dataset.sequence_lengths[dataset.indices].sum())


@dataclass
class Batches(Iterator[dict[str, torch.Tensor]]):
    """This data-parallel rank's micro-batches, from sample `consumed` of the whole run on.

    Each run of `micro_batch_size x data-parallel ranks` consecutive samples is one micro-batch of
    every rank, so a global batch holds the same samples whatever the layout.
    """

    dataset: GPTDataset
    config: TrainConfig
    consumed: int
    vocab_size: int
    taken: list[int] = field(default_factory=list)
    """Samples handed out since the last `record`."""

    def __next__(self) -> dict[str, torch.Tensor]:
        size = self.config.micro_batch_size
        first = self.consumed + parallel_state.get_data_parallel_rank() * size
        ids = range(first, first + size)
        self.consumed += size * parallel_state.get_data_parallel_world_size()
        self.taken.extend(ids)
        samples = [self.dataset[i] for i in ids]
        batch = {key: torch.stack([s[key] for s in samples]) for key in samples[0]}
        largest = int(torch.maximum(batch["tokens"].max(), batch["labels"].max()))
        if largest >= self.vocab_size:
            raise InputError(
                "A token id lies outside the model's vocabulary",
                where=self.dataset.dataset_path,
                expected=f"ids below {self.vocab_size}",
                got=largest,
                fix="tokenize with the tokenizer of this model",
            )
        device = torch.cuda.current_device()
        return {key: value.to(device) for key, value in batch.items()}

    def record(self) -> dict[str, Any]:
        """Return what all data-parallel ranks took since the last call; a collective call.

        `samples` and `documents` have one entry a rank; a sample's documents are the ids of the
        documents that its tokens come from, in the split's own numbering.
        """
        mine = (list(self.taken), [self._documents(i) for i in self.taken])
        self.taken.clear()
        everyone: list[Any] = [None] * parallel_state.get_data_parallel_world_size()
        group = parallel_state.get_data_parallel_group()
        torch.distributed.all_gather_object(everyone, mine, group=group)
        return {"samples": [s for s, _ in everyone], "documents": [d for _, d in everyone]}

    def _documents(self, sample: int) -> list[int]:
        dataset = self.dataset
        place = int(dataset.shuffle_index[sample])
        first, last = dataset.sample_index[place][0], dataset.sample_index[place + 1][0]
        return [int(i) for i in dataset.document_index[first : last + 1]]
