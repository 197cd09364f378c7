"""The indices of `GPTDataset` and `BlendedDataset`, built without Megatron and without torch.

Number for number what `megatron/core/datasets/{gpt_dataset,blended_dataset}.py` and `helpers.cpp`
(0.16.1 and 0.19.2) build of the same lengths, seed and weights, the surplus of half a percent in
each source of a blend included. They depend on nothing else; so that is what they are filed under.

INDEX/0-document_index.npy   the source's sequences in the order they are read, all epochs
INDEX/0-sample_index.npy     [samples + 1, 2]: where in that order a sample begins; at which token
INDEX/0-shuffle_index.npy    the order in which samples are taken
INDEX/dataset_index.npy      of a blend: the source of each sample
INDEX/dataset_sample_index.npy   of a blend: the sample's number within its source
INDEX/counts.json            samples of each source: indexed, and taken by the run
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from megatron_bridge.config import DataSource, TrainConfig
from megatron_bridge.data import blend, lengths
from megatron_bridge.data.lengths import Lengths

DOCUMENT, SAMPLE, SHUFFLE = "document_index.npy", "sample_index.npy", "shuffle_index.npy"
DATASET, DATASET_SAMPLE = "dataset_index.npy", "dataset_sample_index.npy"

_VERSION = 1
_SURPLUS = 0.005
_SEPARATE_BELOW = 0.80
_BLOCK = 1 << 20

_log = logging.getLogger(__name__)

Array = NDArray[np.integer]


class Samples(BaseModel):
    """The samples of a run, as its ranks read them from a file.

    Attributes:
        folder: the indices.
        indexed: samples that each source is indexed for, at least as many as are taken.
        rows: the table; see `blend.table`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path
    indexed: list[int]
    rows: list[blend.Row]


def build(sources: Sequence[DataSource], config: TrainConfig, cache: Path) -> Samples:
    """Index the samples of a run, or find them indexed.

    Args:
        sources: what they are drawn from. One alone is indexed as `GPTDataset` does it, several as
            `BlendedMegatronDatasetBuilder` does with the same weights.
        config: its seed, sequence length and number of samples.
        cache: a folder for the indices of any number of runs.

    Raises:
        ConfigError: see `blend.table`; before anything long is done.
        InputError: a dataset is missing or damaged.
    """
    read = [lengths.read(source.prefix) for source in sources]
    weights = [source.weight for source in sources]
    stocks = [
        blend.Stock(s.name or str(s.prefix), one.documents, one.tokens, s.weight, s.repeats)
        for s, one in zip(sources, read, strict=True)
    ]
    length = config.sequence_length
    blend.table(stocks, blend.at_most(weights, config.samples), length)
    folder = cache / _key(read, weights, config)
    if not (folder / "counts.json").is_file():
        _log.info("building the indices of %s samples in %s", f"{config.samples:,}", folder)
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=cache) as own:
            partial = Path(own) / folder.name
            partial.mkdir()
            _write(partial, read, weights, config)
            try:
                partial.rename(folder)
            except OSError:
                # Another run may have been faster; its indices are the same.
                if not folder.is_dir():
                    raise
    counts = json.loads((folder / "counts.json").read_text(encoding="utf-8"))
    rows = blend.table(stocks, counts["taken"], length)
    return Samples(folder=folder, indexed=counts["indexed"], rows=rows)


def draw(weights: Sequence[float], size: int) -> NDArray[np.int16]:
    """The source of each of `size` samples: always the one furthest behind its share."""
    chosen = np.empty(size, np.int16)
    counts = [0] * len(weights)
    for sample in range(size):
        at = float(sample or 1)
        behind = [weight * at - count for weight, count in zip(weights, counts, strict=True)]
        source = behind.index(max(behind))
        chosen[sample] = source
        counts[source] += 1
    return chosen


def epochs(tokens: int, samples: int, sequence_length: int) -> int:
    """How often a source is gone through for so many samples and the last one's last label."""
    return -(-(samples * sequence_length + 1) // tokens)


def _key(read: Sequence[Lengths], weights: Sequence[float], config: TrainConfig) -> str:
    facts = {
        "version": _VERSION,
        "seed": config.seed,
        "sequence_length": config.sequence_length,
        "samples": config.samples,
        "lengths": [one.sha256 for one in read],
        "weights": _normalized(weights),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def _write(
    folder: Path, read: Sequence[Lengths], weights: Sequence[float], config: TrainConfig
) -> None:
    indexed = taken = [config.samples]
    if len(read) > 1:
        shares = _normalized(weights)
        targets = [math.ceil(config.samples * share) for share in shares]
        # Megatron normalises twice, which may move the last bit.
        chosen = draw(_normalized(shares), sum(targets))
        drawn = np.bincount(chosen, minlength=len(read)).tolist()
        surplus = [math.ceil(target * (1 + _SURPLUS)) for target in targets]
        # Megatron fails where the draw goes beyond its surplus.
        indexed = [max(pair) for pair in zip(surplus, drawn, strict=True)]
        taken = np.bincount(chosen[: config.samples], minlength=len(read)).tolist()
        numbers = np.empty(len(chosen), np.int64)
        for source, count in enumerate(drawn):
            numbers[chosen == source] = np.arange(count)
        np.save(folder / DATASET, chosen)
        np.save(folder / DATASET_SAMPLE, numbers)
    for number, (one, count) in enumerate(zip(read, indexed, strict=True)):
        _write_source(folder, f"{number}-", one, count, config)
    counts = {"indexed": indexed, "taken": taken}
    (folder / "counts.json").write_text(json.dumps(counts) + "\n", encoding="utf-8")


def _write_source(
    folder: Path, prefix: str, read: Lengths, samples: int, config: TrainConfig
) -> None:
    length, passes = config.sequence_length, epochs(read.tokens, samples, config.sequence_length)
    whole = (passes * read.tokens - 1) // length
    # A last epoch of which little is needed is shuffled by itself, after the others.
    without_last = ((passes - 1) * read.tokens - 1) // length
    per_epoch = (read.tokens - 1) // length
    apart = passes > 1 and samples - without_last < int(_SEPARATE_BELOW * per_epoch)
    state = np.random.RandomState(config.seed)
    pieces = [passes - 1, 1] if apart else [passes]
    order = np.concatenate([_shuffled_documents(len(read.each), n, state) for n in pieces])
    np.save(folder / f"{prefix}{DOCUMENT}", order)
    _write_samples(folder / f"{prefix}{SAMPLE}", read, order, length, whole)
    cut = without_last if apart else whole
    np.save(folder / f"{prefix}{SHUFFLE}", _shuffled_samples(cut, whole, state))


def _shuffled_documents(count: int, passes: int, state: np.random.RandomState) -> NDArray[np.int32]:
    order = np.tile(np.arange(count, dtype=np.int32), passes)
    state.shuffle(order)
    return order


def _shuffled_samples(cut: int, whole: int, state: np.random.RandomState) -> Array:
    small = whole < np.iinfo(np.uint32).max - 1
    order: Array = np.arange(whole).astype(np.uint32 if small else np.int64)
    state.shuffle(order[:cut])
    if cut < whole:
        state.shuffle(order[cut:])
    return order


def _write_samples(path: Path, read: Lengths, order: Array, length: int, samples: int) -> None:
    """Write where each sample begins; in blocks, and not through a map, which a full disk kills."""
    small = max(len(order), int(read.each.max())) <= np.iinfo(np.int32).max
    dtype = np.dtype(np.int32 if small else np.int64)
    header = {"descr": dtype.str, "fortran_order": False, "shape": (samples + 1, 2)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in _begins(read.each, order, length, samples):
            file.write(block.astype(dtype).data)


def _begins(
    each: NDArray[np.int32], order: Array, length: int, samples: int
) -> Iterator[NDArray[np.int64]]:
    """Blocks of (place in the order, token there); samples begin `length` tokens apart."""
    # Also where the first sequence is empty.
    yield np.zeros((1, 2), np.int64)
    sample, before = 1, 0
    for start in range(0, len(order), _BLOCK):
        bounds = np.cumsum(np.concatenate([[before], each[order[start : start + _BLOCK]]]))
        before = int(bounds[-1])
        stop = min(samples, (before - 1) // length) + 1
        for first in range(sample, stop, _BLOCK):
            begins = np.arange(first, min(stop, first + _BLOCK)) * length
            places = np.searchsorted(bounds[1:], begins, side="right")
            yield np.stack([start + places, begins - bounds[places]], axis=1)
        sample = max(sample, stop)


def _normalized(weights: Sequence[float]) -> list[float]:
    given = np.array(weights, np.float64)
    shares: list[float] = (given / given.sum()).tolist()
    return shares
