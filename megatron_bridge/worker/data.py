"""Training samples: Megatron's GPTDataset by prebuilt indices, read in a resumable order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from megatron.core import parallel_state
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.utils import Split

from megatron_bridge import resume
from megatron_bridge.config import TrainConfig, TrainSpec
from megatron_bridge.data import indices
from megatron_bridge.errors import InputError


class TokenizerFacts:
    """What GPTDataset asks of a tokenizer; the tokens are there already."""

    def __init__(self, end_of_document: int, vocab_size: int) -> None:
        self.eod = end_of_document
        self.vocab_size = vocab_size
        self.unique_identifiers = {"eod": end_of_document, "vocab_size": vocab_size}


class Indexed(GPTDataset):
    """A source's samples, by indices that were built before the ranks started; it builds none.

    Args:
        prefix: of its `.bin` and `.idx`.
        folder: of its indices.
        config: Megatron's.
    """

    def __init__(self, prefix: Path, folder: Path, config: GPTDatasetConfig) -> None:
        self._folder = folder
        tokens = GPTDataset.build_low_level_dataset(str(prefix), config)
        everything = numpy.arange(len(tokens), dtype=numpy.int32)
        super().__init__(tokens, str(prefix), everything, None, Split.train, config)

    def _build_document_sample_shuffle_indices(self) -> tuple[Any, Any, Any]:
        document, sample, shuffle = (
            _load(self._folder / name)
            for name in (indices.DOCUMENT, indices.SAMPLE, indices.SHUFFLE)
        )
        return document, sample, shuffle

    def documents(self, sample: int) -> list[int]:
        """The documents that a sample's tokens come from, in the source's own numbering."""
        place = int(self.shuffle_index[sample])
        first, last = self.sample_index[place][0], self.sample_index[place + 1][0]
        sequences = self.document_index[first : last + 1]
        # A document may have several sequences.
        places = numpy.searchsorted(self.dataset.document_indices, sequences, side="right") - 1
        found: list[int] = places.tolist()
        return found


@dataclass
class Blend:
    """The samples of a run, over all its sources.

    Attributes:
        sources: the datasets.
        tokens: in all of them.
        places: the source of each sample and its number there; None for a single source.
    """

    sources: list[Indexed]
    tokens: int
    places: tuple[Any, Any] | None

    def locate(self, sample: int) -> tuple[int, int]:
        """The source of a sample, and its number within it."""
        if self.places is None:
            return 0, sample
        source, number = self.places
        return int(source[sample]), int(number[sample])

    def __getitem__(self, sample: int) -> dict[str, torch.Tensor]:
        source, number = self.locate(sample)
        item: dict[str, torch.Tensor] = self.sources[source][number]
        return item


def build(spec: TrainSpec, vocab_size: int) -> Blend:
    """Return the samples of `sequence_length` tokens that `runs.train` indexed for all steps.

    Raises:
        InputError: the indices are not to be seen from here.
    """
    text = (spec.run_dir / resume.SAMPLES).read_text(encoding="utf-8")
    samples = indices.Samples.model_validate_json(text)
    prefixes = [source.prefix for source in spec.sources]
    config = GPTDatasetConfig(
        random_seed=spec.config.seed,
        sequence_length=spec.config.sequence_length,
        blend_per_split=[([str(prefix) for prefix in prefixes], None), None, None],
        tokenizer=TokenizerFacts(spec.end_of_document, vocab_size),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    places = None
    if samples.blend is not None:
        names = (indices.DATASET, indices.DATASET_SAMPLE)
        dataset, number = (_load(samples.blend / name) for name in names)
        places = dataset, number
    sources = [
        Indexed(prefix, folder, config)
        for prefix, folder in zip(prefixes, samples.sources, strict=True)
    ]
    return Blend(sources, sum(row["tokens"] for row in samples.rows), places)


@dataclass
class Batches(Iterator[dict[str, torch.Tensor]]):
    """This data-parallel rank's micro-batches, from sample `consumed` of the whole run on.

    Each run of `micro_batch_size x data-parallel ranks` consecutive samples is one micro-batch of
    every rank, so a global batch holds the same samples whatever the layout.
    """

    dataset: Blend
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
                where=", ".join(source.dataset_path for source in self.dataset.sources),
                expected=f"ids below {self.vocab_size}",
                got=largest,
                fix="tokenize with the tokenizer of this model",
            )
        device = torch.cuda.current_device()
        return {key: value.to(device) for key, value in batch.items()}

    def record(self) -> dict[str, Any]:
        """Return what all data-parallel ranks took since the last call; a collective call.

        `samples`, `sources` and `documents` have one entry a rank: numbers in the whole run, the
        place of each one's source in the blend, and the ids of the documents that its tokens come
        from, in the source's own numbering.
        """
        places = [self.dataset.locate(i) for i in self.taken]
        documents = [self.dataset.sources[source].documents(i) for source, i in places]
        mine = (list(self.taken), [source for source, _ in places], documents)
        self.taken.clear()
        everyone: list[Any] = [None] * parallel_state.get_data_parallel_world_size()
        group = parallel_state.get_data_parallel_group()
        torch.distributed.all_gather_object(everyone, mine, group=group)
        names = ("samples", "sources", "documents")
        return {name: [each[i] for each in everyone] for i, name in enumerate(names)}


def _load(path: Path) -> Any:
    try:
        return numpy.load(path, mmap_mode="r")
    except (FileNotFoundError, ValueError) as error:
        raise InputError(
            "The indices of the samples cannot be read here",
            where=path,
            expected="the file that was written before the ranks started, on every node",
            got="no such file" if isinstance(error, FileNotFoundError) else error,
            fix=f"put the store on a disk that all nodes share, remove {path.parent} and run again",
        ) from error
