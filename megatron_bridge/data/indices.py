"""The indices of `GPTDataset` and `BlendedDataset`, built without Megatron and without torch.

Number for number what `megatron/core/datasets/{gpt_dataset,blended_dataset}.py` and `helpers.cpp`
(0.16.1 and 0.19.2) build of the same lengths, seed and weights, the surplus of half a percent in
each source of a blend included. They depend on nothing else, so that is what they are filed under:
another learning rate finds them, and so do more steps within the same epoch.

Of a source, in a folder of their own:
  document_index.npy         its sequences in the order they are read, all epochs
  sample_index.npy           [samples + 1, 2]: where in that order a sample begins; at which token
  shuffle_index.npy          the order in which samples are taken
Of a blend:
  dataset_index.npy          the source of each sample
  dataset_sample_index.npy   the sample's number within its source
  counts.json                samples of each source: indexed, and taken by the run
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from megatron_bridge.config import DataSource, TrainConfig
from megatron_bridge.data import blend, lengths
from megatron_bridge.data.blend import Row
from megatron_bridge.data.lengths import Lengths

DOCUMENT, SAMPLE, SHUFFLE = "document_index.npy", "sample_index.npy", "shuffle_index.npy"
DATASET, DATASET_SAMPLE = "dataset_index.npy", "dataset_sample_index.npy"

_VERSION = 1
_SURPLUS = 0.005
_SEPARATE_BELOW = 0.80
_BLOCK = 1 << 20
_LEFT_BEHIND_SECONDS = 86_400

_log = logging.getLogger(__name__)

Array = NDArray[np.integer]


class Samples(BaseModel):
    """The samples of a run, as its ranks read them from a file.

    Attributes:
        sources: the folders of each source's indices.
        blend: the folder of the blend's; None for a single source.
        rows: the table; see `blend.table`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sources: list[Path]
    blend: Path | None
    rows: list[Row]

    @property
    def key(self) -> str:
        """The same for the same samples in the same order; more of them may follow."""
        pairs = zip(self.sources, self.rows, strict=True)
        return " ".join(f"{path.name}:{row['weight']}" for path, row in pairs)


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
    drawn, counts = None, {"indexed": [config.samples], "taken": [config.samples]}
    if len(sources) > 1:
        facts = {"weights": _normalized(weights), "samples": config.samples}
        drawn = _kept(cache, facts, partial(_write_blend, weights, config.samples))
        counts = json.loads((drawn / "counts.json").read_text(encoding="utf-8"))
    rows = blend.table(stocks, counts["taken"], length)
    folders = []
    for one, samples in zip(read, counts["indexed"], strict=True):
        plan = _plan(one.tokens, samples, config)
        folders.append(
            _kept(cache, {"lengths": one.sha256, **asdict(plan)}, partial(_write, one, plan))
        )
    return Samples(sources=folders, blend=drawn, rows=rows)


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


@dataclass(frozen=True)
class _Plan:
    """How a source is gone through.

    Attributes:
        passes: epochs begun.
        samples: in all of them.
        cut: samples before the last epoch, where that is shuffled by itself; else all.
    """

    passes: int
    samples: int
    cut: int
    sequence_length: int
    seed: int


def _plan(tokens: int, samples: int, config: TrainConfig) -> _Plan:
    # Every sample but the last shares its last label with the next one's first token.
    length = config.sequence_length
    passes = -(-(samples * length + 1) // tokens)
    whole, before_last, an_epoch = ((n * tokens - 1) // length for n in (passes, passes - 1, 1))
    # A last epoch of which little is needed is shuffled by itself, after the others.
    apart = passes > 1 and samples - before_last < int(_SEPARATE_BELOW * an_epoch)
    return _Plan(passes, whole, before_last if apart else whole, length, config.seed)


def _kept(cache: Path, facts: dict[str, Any], write: Callable[[Path], None]) -> Path:
    """The folder in `cache` for what depends on these facts alone, written if it is not there."""
    text = json.dumps({"version": _VERSION, **facts}, sort_keys=True)
    folder = cache / hashlib.sha256(text.encode()).hexdigest()[:12]
    if folder.is_dir():
        return folder
    _log.info("building indices of samples in %s", folder)
    cache.mkdir(parents=True, exist_ok=True)
    for left in cache.glob(".*"):
        # A killed run's; another's may be under way.
        if time.time() - left.stat().st_mtime > _LEFT_BEHIND_SECONDS:
            shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=".", dir=cache) as own:
        partial_folder = Path(own) / folder.name
        partial_folder.mkdir()
        write(partial_folder)
        try:
            partial_folder.rename(folder)
        except OSError:
            # Another run may have been faster; its indices are the same.
            if not folder.is_dir():
                raise
    return folder


def _write_blend(weights: Sequence[float], samples: int, folder: Path) -> None:
    shares = _normalized(weights)
    targets = [math.ceil(samples * share) for share in shares]
    # Megatron normalises twice, which may move the last bit.
    chosen = draw(_normalized(shares), sum(targets))
    drawn = np.bincount(chosen, minlength=len(shares)).tolist()
    surplus = [math.ceil(target * (1 + _SURPLUS)) for target in targets]
    numbers = np.empty(len(chosen), np.int64)
    for source, count in enumerate(drawn):
        numbers[chosen == source] = np.arange(count)
    np.save(folder / DATASET, chosen)
    np.save(folder / DATASET_SAMPLE, numbers)
    counts = {
        # Megatron fails where the draw goes beyond its surplus.
        "indexed": [max(pair) for pair in zip(surplus, drawn, strict=True)],
        "taken": np.bincount(chosen[:samples], minlength=len(shares)).tolist(),
    }
    (folder / "counts.json").write_text(json.dumps(counts) + "\n", encoding="utf-8")


def _write(read: Lengths, plan: _Plan, folder: Path) -> None:
    state = np.random.RandomState(plan.seed)
    pieces = [plan.passes - 1, 1] if plan.cut < plan.samples else [plan.passes]
    order = np.concatenate([_shuffled_documents(len(read.each), n, state) for n in pieces])
    np.save(folder / DOCUMENT, order)
    _write_samples(folder / SAMPLE, read, order, plan)
    np.save(folder / SHUFFLE, _shuffled_samples(plan, state))


def _shuffled_documents(count: int, passes: int, state: np.random.RandomState) -> NDArray[np.int32]:
    order = np.tile(np.arange(count, dtype=np.int32), passes)
    state.shuffle(order)
    return order


def _shuffled_samples(plan: _Plan, state: np.random.RandomState) -> Array:
    small = plan.samples < np.iinfo(np.uint32).max - 1
    order: Array = np.arange(plan.samples).astype(np.uint32 if small else np.int64)
    state.shuffle(order[: plan.cut])
    if plan.cut < plan.samples:
        state.shuffle(order[plan.cut :])
    return order


def _write_samples(path: Path, read: Lengths, order: Array, plan: _Plan) -> None:
    """Write where each sample begins; in blocks, and not through a map, which a full disk kills."""
    small = max(len(order), int(read.each.max())) <= np.iinfo(np.int32).max
    dtype = np.dtype(np.int32 if small else np.int64)
    header = {"descr": dtype.str, "fortran_order": False, "shape": (plan.samples + 1, 2)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in _begins(read.each, order, plan):
            file.write(block.astype(dtype).data)


def _begins(each: NDArray[np.int32], order: Array, plan: _Plan) -> Iterator[NDArray[np.int64]]:
    """Blocks of (place in the order, token there); samples begin `sequence_length` apart."""
    length = plan.sequence_length
    # Also where the first sequence is empty.
    yield np.zeros((1, 2), np.int64)
    sample, before = 1, 0
    for start in range(0, len(order), _BLOCK):
        bounds = np.cumsum(np.concatenate([[before], each[order[start : start + _BLOCK]]]))
        before = int(bounds[-1])
        stop = min(plan.samples, (before - 1) // length) + 1
        for first in range(sample, stop, _BLOCK):
            begins = np.arange(first, min(stop, first + _BLOCK)) * length
            places = np.searchsorted(bounds[1:], begins, side="right")
            yield np.stack([start + places, begins - bounds[places]], axis=1)
        sample = max(sample, stop)


def _normalized(weights: Sequence[float]) -> list[float]:
    given = np.array(weights, np.float64)
    shares: list[float] = (given / given.sum()).tolist()
    return shares
