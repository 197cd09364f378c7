"""Prebuilt indices, number for number and token for token beside Megatron's own."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from megatron_bridge import resume, runs
from megatron_bridge.config import DataSource, TrainConfig, TrainSpec
from megatron_bridge.data import blend, indices, words
from megatron_bridge.errors import ConfigError, InputError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    from megatron_bridge.worker import data

END = 4999
NAMES = (indices.DOCUMENT, indices.SAMPLE, indices.SHUFFLE)


def write(prefix: Path, lengths: list[int], seed: int = 1) -> Path:
    """Write documents of these lengths with Megatron's own builder."""
    generator = np.random.default_rng(seed)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for length in lengths:
        builder.add_document(generator.integers(0, END, length), [length])
    builder.finalize(f"{prefix}.idx")
    return prefix


def some(count: int, seed: int = 5) -> list[int]:
    """Lengths of documents, some of them 0 or 1, the first one 0."""
    drawn = np.random.default_rng(seed).integers(0, 90, count)
    return [0, *np.where(drawn < 8, drawn // 4, drawn).tolist()]


def theirs(prefixes: list[Path], weights: list[float] | None, config: TrainConfig) -> Any:
    """What Megatron builds for the same run, in memory."""
    return BlendedMegatronDatasetBuilder(
        GPTDataset,
        [config.samples, 0, 0],
        lambda: True,
        GPTDatasetConfig(
            random_seed=config.seed,
            sequence_length=config.sequence_length,
            blend_per_split=[([str(prefix) for prefix in prefixes], weights), None, None],
            tokenizer=SimpleNamespace(eod=END, vocab_size=5000, unique_identifiers={}),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        ),
    ).build()[0]


def ours(root: Path, sources: list[DataSource], config: TrainConfig) -> tuple[Any, Any]:
    """The indexed samples, and how a rank reads them."""
    root.mkdir(exist_ok=True)
    samples = indices.build(sources, config, root / "index")
    (root / resume.SAMPLES).write_text(samples.model_dump_json())
    spec = TrainSpec(
        config=config, checkpoint=root, train_data=tuple(sources), end_of_document=END, run_dir=root
    )
    return samples, data.build(spec, 5000)


def same(one: Any, other: Any, numbers: Any) -> bool:
    """Whether `other` has these samples as well; a blend of Megatron's adds its `dataset_id`."""
    return all(torch.equal(one[i][key], other[i][key]) for i in numbers for key in other[i])


def check_arrays(folder: Path, dataset: Any) -> None:
    for name in NAMES:
        built = np.load(folder / name)
        own = getattr(dataset, name.removesuffix(".npy"))
        assert built.dtype == own.dtype
        assert np.array_equal(built, own), name


# Of some(60), 2,540 tokens: in sequences of 30 one epoch has 84 samples, and a last epoch of fewer
# than 67 is shuffled by itself.
@pytest.mark.parametrize(
    ("samples", "passes", "apart"),
    [(1, 1, False), (80, 1, False), (100, 2, True), (160, 2, False), (420, 5, False),
     (365, 5, True)],
)  # fmt: skip
@pytest.mark.parametrize("block", [7, 1 << 20])
def test_a_source_is_indexed_as_by_gptdataset(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    samples: int,
    passes: int,
    apart: bool,
    block: int,
) -> None:
    monkeypatch.setattr(indices, "_BLOCK", block)
    prefix = write(tmp_path / "train", some(60))
    config = TrainConfig(steps=samples, global_batch_size=1, sequence_length=30, seed=samples)
    found, read = ours(tmp_path / "run", [DataSource(prefix=prefix, repeats=True)], config)
    own = theirs([prefix], None, config)
    check_arrays(found.sources[0], own)
    assert len(own.document_index) == 61 * passes
    last = set(own.document_index[-61:].tolist())
    assert (last == set(range(61))) == (apart or passes == 1)
    assert same(own, read, range(samples))


def test_one_long_document_and_a_sample_of_two_tokens(tmp_path: Path) -> None:
    for number, (lengths, length, samples) in enumerate([([5000], 7, 714), ([9, 9, 9], 2, 13)]):
        prefix = write(tmp_path / str(number), lengths)
        config = TrainConfig(steps=samples, global_batch_size=1, sequence_length=length)
        found, _ = ours(tmp_path / f"run{number}", [DataSource(prefix=prefix)], config)
        check_arrays(found.sources[0], theirs([prefix], None, config))


@pytest.mark.parametrize(
    "weights", [[0.7, 0.3], [1.0, 2.0, 5.0], [0.1] * 10, [1 / 3, 1 / 3, 1e-3, 7.0], [2.0]]
)
def test_a_blend_is_that_of_blendeddataset(tmp_path: Path, weights: list[float]) -> None:
    prefixes = [write(tmp_path / str(i), some(20 + 9 * i, i), i) for i in range(len(weights))]
    config = TrainConfig(steps=61, global_batch_size=3, sequence_length=30, seed=7)
    sources = [
        DataSource(prefix=prefix, weight=weight, repeats=True)
        for prefix, weight in zip(prefixes, weights, strict=True)
    ]
    found, read = ours(tmp_path / "run", sources, config)
    own = theirs(prefixes, weights, config)
    if len(weights) == 1:
        check_arrays(found.sources[0], own)
        return
    for name in (indices.DATASET, indices.DATASET_SAMPLE):
        built = np.load(found.blend / name)
        mine = getattr(own, name.removesuffix(".npy"))
        assert built.dtype == mine.dtype
        assert np.array_equal(built, mine)
    for number, dataset in enumerate(own.datasets):
        check_arrays(found.sources[number], dataset)
    assert same(own, read, range(len(own)))
    for sample in range(len(own)):
        source, number = read.locate(sample)
        documents = own.datasets[source]._query_document_sample_shuffle_indices(number)[1]
        assert read.sources[source].documents(number) == documents.tolist()
    counted = np.bincount(own.dataset_index[: config.samples], minlength=len(weights)).tolist()
    assert [row["samples"] for row in found.rows] == counted
    bound = blend.at_most(weights, config.samples)
    assert all(count <= most for count, most in zip(counted, bound, strict=True))


def test_documents_of_several_sequences_are_counted_and_told_as_documents(tmp_path: Path) -> None:
    builder = IndexedDatasetBuilder(f"{tmp_path}/train.bin", dtype=np.uint16)
    for number in range(9):
        builder.add_document(np.full(30, number), [10, 15, 5])
    builder.finalize(f"{tmp_path}/train.idx")
    config = TrainConfig(steps=20, global_batch_size=1, sequence_length=13)
    found, read = ours(tmp_path / "run", [DataSource(prefix=tmp_path / "train")], config)
    assert found.rows[0]["documents"] == 9
    check_arrays(found.sources[0], theirs([tmp_path / "train"], None, config))
    for i in range(20):
        # Each token is its document's number, and the last label is one more.
        tokens = [*read[i]["tokens"].tolist(), int(read[i]["labels"][-1])]
        assert set(read.sources[0].documents(i)) == set(tokens)


def test_a_rank_reads_what_was_built_and_builds_nothing(tmp_path: Path) -> None:
    prefixes = [write(tmp_path / str(i), some(40, i), i) for i in range(2)]
    config = TrainConfig(steps=20, global_batch_size=1, sequence_length=30)
    sources = [DataSource(prefix=prefix) for prefix in prefixes]
    found, read = ours(tmp_path / "run", sources, config)
    own = theirs(prefixes, [1.0, 1.0], config)
    assert same(own, read, range(20))

    path = found.sources[0] / indices.SHUFFLE
    doctored = np.load(path)
    doctored[:2] = doctored[1::-1].copy()
    np.save(path, doctored)
    _, read = ours(tmp_path / "run", sources, config)
    assert not same(own, read, [0, 2])
    first, third = (i for i in range(20) if own.dataset_index[i] == 0 and i < 4)
    assert torch.equal(read[first]["tokens"], own[third]["tokens"])
    assert torch.equal(read[third]["tokens"], own[first]["tokens"])

    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="cannot be read here"):
        ours(tmp_path / "run", sources, config)
    path.unlink()
    with pytest.raises(InputError, match="no such file"):
        ours(tmp_path / "run", sources, config)


def test_only_what_depends_on_a_change_is_built_anew(tmp_path: Path) -> None:
    prefixes = [write(tmp_path / str(i), some(40, i), i) for i in range(2)]
    config = TrainConfig(steps=20, global_batch_size=1, sequence_length=30)
    sources = [DataSource(prefix=prefix) for prefix in prefixes]
    cache = tmp_path / "index"

    def built(sources: list[DataSource] = sources, **changes: Any) -> list[int]:
        """Folders that were added: of a blend, of sources."""
        before = set(cache.iterdir()) if cache.is_dir() else set()
        indices.build(sources, config.model_copy(update=changes), cache)
        added = set(cache.iterdir()) - before
        blends = [path for path in added if (path / indices.DATASET).is_file()]
        return [len(blends), len(added) - len(blends)]

    def weighing(weight: float) -> list[DataSource]:
        return [sources[0].model_copy(update={"weight": weight}), sources[1]]

    assert built() == [1, 2]
    assert built() == built(learning_rate=1.0) == [0, 0]
    assert built([one.model_copy(update={"weight": 5.0}) for one in sources]) == [0, 0]
    assert built(sequence_length=31) == [0, 2]
    assert built(seed=2) == [0, 2]
    # More steps and another weight are, within one epoch, only another blend.
    assert built(steps=21) == built(weighing(2.0)) == [1, 0]
    assert built(sources[::-1]) == built(sources[:1]) == [0, 0]

    left = cache / ".killed"
    left.mkdir()
    assert built(seed=3) == [0, 2]
    assert left.is_dir()
    os.utime(left, (1, 1))
    built(seed=4)
    assert not left.exists()


def test_a_run_does_not_go_on_with_other_samples(tmp_path: Path) -> None:
    prefix = write(tmp_path / "train", some(60))
    config = TrainConfig(steps=80, global_batch_size=1, sequence_length=30)

    def key(steps: int, weights: tuple[float, ...] = ()) -> Any:
        sources = [DataSource(prefix=prefix, weight=w, repeats=True) for w in weights or (1.0,)]
        other = config.model_copy(update={"steps": steps})
        return ours(tmp_path / "run", sources, other)[0]

    file = tmp_path / "run" / resume.SAMPLES
    one, two = key(80), key(80, (1.0, 2.0))
    # A longer run within the same epoch begins with the same samples.
    for begun, now in ((one, key(84)), (two, key(90, (1.0, 2.0)))):
        file.write_text(begun.model_dump_json())
        runs._require_same(now, file, 4)
    for begun, now in ((one, key(85)), (one, two), (two, key(80, (2.0, 1.0)))):
        file.write_text(begun.model_dump_json())
        with pytest.raises(ConfigError, match=r"begun with other samples.*step 4"):
            runs._require_same(now, file, 4)


def test_the_table_is_the_one_worked_out_by_hand(tmp_path: Path) -> None:
    # 10 samples of 30 at 3 to 1. 'Furthest behind its share', by hand: a b a a a b a a a b.
    sources = [
        DataSource(prefix=write(tmp_path / "a", [100, 50]), weight=3.0, repeats=True, name="a"),
        DataSource(prefix=write(tmp_path / "b", [91]), weight=1.0, name="b"),
    ]
    config = TrainConfig(steps=5, global_batch_size=2, sequence_length=30)
    assert indices.draw([0.75, 0.25], 10).tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 0, 1]
    rows = indices.build(sources, config, tmp_path / "index").rows
    assert rows == [
        {"source": "a", "documents": 2, "tokens": 150, "weight": 0.75, "samples": 7,
         "epochs": 1.4, "repeated_tokens": 60},
        {"source": "b", "documents": 1, "tokens": 91, "weight": 0.25, "samples": 3,
         "epochs": round(90 / 91, 4), "repeated_tokens": 0},
    ]  # fmt: skip
    assert blend.lines(rows)[1].split() == ["a", "2", "150", "0.75", "7", "1.4", "60"]


def test_more_than_is_there_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    config = TrainConfig(steps=5, global_batch_size=2, sequence_length=30)
    a = DataSource(prefix=write(tmp_path / "a", [1000]), weight=3.0)
    # Its three samples take 90 tokens, and the last label is one more.
    b = DataSource(prefix=write(tmp_path / "b", [90]), name="b")
    with pytest.raises(ConfigError, match=r"more of a source.*the blend, b.*at most the 2 samples"):
        indices.build([a, b], config, tmp_path / "index")
    assert not (tmp_path / "index").exists()
    allowed = b.model_copy(update={"repeats": True})
    rows = indices.build([a, allowed], config, tmp_path / "index").rows
    assert [row["epochs"] for row in rows] == [0.21, 1.0]
    enough = DataSource(prefix=write(tmp_path / "c", [91]))
    assert indices.build([a, enough], config, tmp_path / "index").rows[1]["samples"] == 3


def test_a_damaged_dataset_is_refused(tmp_path: Path) -> None:
    config = TrainConfig(steps=1, sequence_length=5)
    prefix = write(tmp_path / "train", [20, 30])
    source = [DataSource(prefix=prefix)]
    whole = {suffix: Path(f"{prefix}{suffix}").read_bytes() for suffix in (".bin", ".idx")}
    for suffix, content, said in [
        (".bin", whole[".bin"][:-2], "98 bytes"),
        (".idx", whole[".idx"][:-2], "damaged"),
        (".idx", b"PK" + whole[".idx"][2:], "begins"),
        (".idx", b"", "an empty file"),
    ]:
        Path(f"{prefix}{suffix}").write_bytes(content)
        with pytest.raises(InputError, match=said):
            indices.build(source, config, tmp_path / "index")
        Path(f"{prefix}{suffix}").write_bytes(whole[suffix])
    assert indices.build(source, config, tmp_path / "index").rows[0]["tokens"] == 50


def test_datasets_are_named_as_megatron_lm_names_them(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    assert words.sources([str(a)], []) == a
    assert words.sources(["0.7", str(a), "3", str(b)], [b]) == (
        DataSource(prefix=a, weight=0.7, name=str(a)),
        DataSource(prefix=b, weight=3, name=str(b), repeats=True),
    )
    for wrong in (["0.7", "a", "b"], ["a", "b"], ["0", "a", "1", "b"], ["-1", "a"], ["nan", "a"]):
        with pytest.raises(ConfigError, match="weights above 0 and prefixes in turn"):
            words.sources(wrong, [])
    with pytest.raises(ConfigError, match=r"no dataset of the blend.*Got: .*c\."):
        words.sources(["1", str(a)], [tmp_path / "c"])
