"""Merging: equal to one file, everything checked, nothing written over."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.core.errors import ConfigError, InputError, PipelineError, ProofError, RetryableError
from tasks.tokens import indexed, invariants, merge

HEAD = 34


def write(prefix: Path, documents: list[list[list[int]]], vocabulary: int = 300) -> Path:
    """Documents as lists of sequences as lists of ids."""
    with indexed.Writer(prefix, indexed.best_dtype(vocabulary)) as writer:
        for document in documents:
            flat = np.array([number for sequence in document for number in sequence], np.int64)
            lengths = np.array([len(sequence) for sequence in document], np.int32)
            writer.add(flat, lengths, np.array([len(document)]))
    return prefix


def random_documents(count: int) -> list[list[list[int]]]:
    """Some empty, some of several sequences."""
    draw = random.Random(count)
    return [
        [[draw.randrange(300) for _ in range(draw.randrange(1, 9))] for _ in range(sequences)]
        for sequences in draw.choices((0, 1, 3), (1, 4, 1), k=count)
    ]


def files(prefix: Path) -> list[bytes]:
    return [Path(f"{prefix}{suffix}").read_bytes() for suffix in (".bin", ".idx")]


def make_multimodal(prefix: Path, modes: list[int]) -> Path:
    with open(f"{prefix}.idx", "ab") as file:
        file.write(bytes(modes))
    return prefix


@pytest.mark.parametrize("piece", [3, 1 << 20])
def test_a_hundred_shards_are_the_one_shot_file(
    tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed, "PIECE", piece)
    documents = random_documents(700)
    write(tmp_path / "whole", documents)
    cuts = [0, *sorted(random.Random(1).choices(range(701), k=99)), 700]
    shards = tmp_path / "shards"
    shards.mkdir()
    for number, (start, stop) in enumerate(pairwise(cuts)):
        write(shards / f"part-{number:03}", documents[start:stop])
    merged = merge.merge(merge.prefixes([shards]), tmp_path / "merged")
    assert files(tmp_path / "merged") == files(tmp_path / "whole")
    index = indexed.open_index(tmp_path / "merged")
    assert (merged.datasets, merged.documents, merged.sequences) == (100, 700, index.sequences)
    assert merged.tokens == invariants.check(index)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "merged.bin", "merged.idx", "shards", "whole.bin", "whole.idx"
    ]  # fmt: skip


def test_modes_stay_with_their_sequences(tmp_path: Path) -> None:
    documents = [[[1, 2], [3]], [[4]], [[5, 6]]]
    first = make_multimodal(write(tmp_path / "a", documents[:2]), [0, 1, 1])
    second = make_multimodal(write(tmp_path / "b", documents[2:]), [1])
    empty = write(tmp_path / "c", [[]])
    merged = merge.merge([first, empty, second], tmp_path / "merged")
    whole = write(tmp_path / "whole", [*documents[:2], [], *documents[2:]])
    assert files(tmp_path / "merged") == files(make_multimodal(whole, [0, 1, 1, 1]))
    assert merged.multimodal
    plain = write(tmp_path / "d", documents)
    with pytest.raises(ProofError, match=r"multimodal.*d\.idx"):
        merge.merge([first, plain], tmp_path / "no")


def patched(prefix: Path, suffix: str, at: int, data: bytes) -> None:
    path = Path(f"{prefix}{suffix}")
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


# 3 sequences in 2 documents: lengths at 34, offsets at 46, document ends at 70.
@pytest.mark.parametrize(
    ("suffix", "at", "data", "said"),
    [
        (".idx", 0, b"X", "no index of Megatron's"),
        (".idx", 9, b"\x02", "version 2"),
        (".idx", 17, b"\x09", "format 9"),
        (".idx", 17, b"\x04", "different number formats"),
        (".idx", 18, b"\x04", "4 sequences"),
        (".idx", HEAD, struct.pack("<ii", 1, 2), "ids at byte 4"),
        (".idx", HEAD, struct.pack("<i", -2), "-2 ids"),
        (".idx", HEAD + 8, struct.pack("<i", 5), "do not fit"),
        (".idx", HEAD + 12, struct.pack("<q", 2), "at byte 2"),
        (".idx", HEAD + 36, struct.pack("<q", 1), "ends before it begins"),
        (".idx", HEAD + 44, struct.pack("<q", 7), "ends before it begins"),
        (".idx", HEAD + 52, struct.pack("<q", 2), "2 sequences in its documents"),
    ],
)
def test_what_contradicts_itself_is_refused(
    tmp_path: Path, suffix: str, at: int, data: bytes, said: str
) -> None:
    good = write(tmp_path / "good", [[[1, 2, 3]]])
    bad = write(tmp_path / "bad", [[[1, 2], [3]], [[4, 5, 6]]])
    patched(bad, suffix, at, data)
    with pytest.raises((InputError, ProofError), match=said):
        merge.merge([good, bad], tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("change", [-1, 1])
def test_ids_that_are_missing_or_too_many_are_refused(tmp_path: Path, change: int) -> None:
    bad = write(tmp_path / "bad", [[[1, 2], [3]], [[4, 5, 6]]])
    data = Path(f"{bad}.bin")
    data.write_bytes((data.read_bytes() + b"\0")[: 12 + change])
    with pytest.raises(ProofError, match="do not fit"):
        merge.merge([bad], tmp_path / "out")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    one = write(tmp_path / "one", [[[1]]])
    before = files(one)
    for taken in (one, write(tmp_path / "two", [[[2]]])):
        with pytest.raises(ConfigError, match="there already"):
            merge.merge([one], taken)
    with pytest.raises(ConfigError, match="folder is not there"):
        merge.merge([one], tmp_path / "no" / "out")
    assert files(one) == before


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([], "nothing to merge"),
        (["missing"], "two files"),
        (["half"], "two files"),
        (["empty"], "nothing to merge"),
    ],
)
def test_what_is_no_dataset_is_named(tmp_path: Path, inputs: list[str], said: str) -> None:
    write(tmp_path / "half", [[[1]]])
    (tmp_path / "half.bin").unlink()
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineError, match=said):
        merge.merge(merge.prefixes([tmp_path / name for name in inputs]), tmp_path / "out")


def test_a_file_system_that_does_not_copy_is_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def once(source: int, target: int, count: int) -> int:
        calls.append(count)
        if len(calls) > 1:
            raise OSError(18, "Invalid cross-device link")
        return os.write(target, os.read(source, 2))

    monkeypatch.setattr(merge.os, "copy_file_range", once)
    one = write(tmp_path / "one", [[[1, 2, 3]]])
    merge.merge([one], tmp_path / "out")
    assert files(tmp_path / "out") == files(one)
    assert len(calls) == 2


def test_one_merge_at_a_time(tmp_path: Path) -> None:
    one = write(tmp_path / "one", [[[1]]])
    with open(tmp_path / ".out.new.idx", "wb") as held:
        merge.lock(held)
        held.write(b"another's")
        held.flush()
        with pytest.raises(RetryableError, match="being written"):
            merge.merge([one], tmp_path / "out")
        assert (tmp_path / ".out.new.idx").read_bytes() == b"another's"
    # What a killed one has left is written over.
    merge.merge([one], tmp_path / "out")
    assert files(tmp_path / "out") == files(one)
    assert not (tmp_path / ".out.new.idx").exists()


def test_half_of_a_killed_merge_is_not_merged(tmp_path: Path) -> None:
    one = write(tmp_path / "one", [[[1]]])
    write(tmp_path / ".two.new", [[[2]]])
    assert merge.prefixes([tmp_path]) == [one]


def test_an_output_must_have_a_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no name"):
        merge.merge([write(tmp_path / "one", [[[1]]])], Path())


def test_either_file_names_a_dataset(tmp_path: Path) -> None:
    for path in (tmp_path / "a.bin", tmp_path / "a.idx", tmp_path / "a"):
        assert merge.prefixes([path]) == [tmp_path / "a"]


def test_neither_torch_nor_megatron_is_loaded() -> None:
    script = (
        "import sys, tasks.tokens.merge;"
        "print([m for m in ('torch', 'transformers', 'megatron') if m in sys.modules])"
    )
    found = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert found.strip() == "[]"
