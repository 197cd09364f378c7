"""Megatron-LM's own tools beside ours, with whole tokenizers: `-m slow --megatron-lm DIR`.

`--tokenizers DIR` names a folder with gpt2/ (vocab.json, merges.txt) and qwen3/ (tokenizer.json,
tokenizer_config.json); without it the small ones of tests/data/tokens are taken.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import megatron_lm_tool
import pytest

from tasks.tokens import indexed, merge
from tasks.tokens.preprocess import Options, preprocess

DATA = Path(__file__).parents[1] / "data" / "tokens"
BOTH = ("--json-keys", "text", "title", "--append-eod")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tree(request: pytest.FixtureRequest) -> Path:
    found = request.config.getoption("--megatron-lm")
    if found is None:
        pytest.skip("--megatron-lm names no source tree")
    return Path(found).absolute()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def tokenizers(config: pytest.Config, name: str) -> Path:
    return Path(config.getoption("--tokenizers") or DATA).absolute() / name


def source(path: Path, pieces: bool) -> Path:
    """Some 400 documents of random words and characters; some empty, some in pieces."""
    draw = random.Random(7)
    words = "The river runs north. 12.5 km e.g. Dr. Smith 東京は 大きい。 🙂 \n\n x=2".split(" ")

    def text() -> str:
        random_characters = "".join(map(chr, draw.choices(range(32, 0x2FFF), k=draw.randrange(9))))
        return " ".join(draw.choices(words, k=draw.randrange(60))) + random_characters

    with open(path, "w", encoding="utf-8") as file:
        for number in range(400):
            value: Any = [text(), "", text()] if pieces and number % 11 == 0 else text()
            document = {"id": number, "title": draw.choice(["", "A title. And more"])}
            file.write(json.dumps({**document, "text": "" if number % 13 == 0 else value}) + "\n")
    return path


def ours(path: Path, out: Path, tokenizer: Path, flags: tuple[str, ...], workers: int) -> None:
    options = Options(
        tokenizer, ("text", "title") if "--json-keys" in flags else ("text",),
        "--append-eod" in flags, "--split-sentences" in flags,
    )  # fmt: skip
    preprocess([path], out, options, workers, lambda *_, **__: None)


def datasets(prefix: Path) -> dict[str, bytes]:
    files = prefix.parent.glob(f"{prefix.name}_*_*.???")
    return {file.name.removeprefix(prefix.name): file.read_bytes() for file in files}


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
@pytest.mark.parametrize(
    ("flags", "workers"),
    [(BOTH, 1), (BOTH, 2), ((), 1), ((*BOTH, "--split-sentences"), 2)],
    ids=["one-worker", "two-workers", "plain", "sentences"],
)
def test_files_are_equal(
    tree: Path, home: Path, tmp_path: Path, request: pytest.FixtureRequest, name: str,
    flags: tuple[str, ...], workers: int,
) -> None:  # fmt: skip
    tokenizer = tokenizers(request.config, name)
    path = source(tmp_path / "in.jsonl", "--split-sentences" not in flags)
    megatron_lm_tool.preprocess(
        tree, tokenizer, path, tmp_path / "theirs", *flags, workers=workers, home=home
    )
    ours(path, tmp_path / "ours", tokenizer, flags, workers)
    theirs = datasets(tmp_path / "theirs")
    assert len(theirs) == (4 if "--json-keys" in flags else 2)
    assert datasets(tmp_path / "ours") == theirs


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """A hundred datasets, and the one of all their documents."""
    path = source(tmp_path / "in.jsonl", True)
    lines = path.read_text().splitlines(keepends=True)
    (tmp_path / "shards").mkdir()
    for number in range(100):
        part = tmp_path / "part.jsonl"
        part.write_text("".join(lines[4 * number : 4 * number + 4]))
        ours(part, tmp_path / "shards" / f"{number:03}", DATA / "gpt2", ("--append-eod",), 1)
        (tmp_path / "shards" / f"{number:03}_tokens.json").unlink()
    ours(path, tmp_path / "whole", DATA / "gpt2", ("--append-eod",), 1)
    return merge.prefixes([tmp_path / "shards"])


def test_a_merge_of_a_hundred_is_theirs_and_the_one_shot_file(
    tree: Path, home: Path, tmp_path: Path, shards: list[Path]
) -> None:
    merge.merge(shards, tmp_path / "ours")
    megatron_lm_tool.run(
        tree, "merge_datasets.py", "--input", tmp_path / "shards", "--output-prefix",
        tmp_path / "theirs", cwd=home, home=home,
    )  # fmt: skip
    for suffix in (".bin", ".idx"):
        found = (tmp_path / f"ours{suffix}").read_bytes()
        assert found == (tmp_path / f"theirs{suffix}").read_bytes()
        assert found == (tmp_path / f"whole_text_document{suffix}").read_bytes()


def test_indexed_dataset_reads_sequences_and_documents(tmp_path: Path) -> None:
    script = f"""
import json
from megatron.core.datasets.indexed_dataset import IndexedDataset
read = {{}}
for name in ("gpt2/eod_text_document", "gpt2/sentences_text_sentence", "qwen3/eod_title_document"):
    data = IndexedDataset("{tmp_path}/" + name)
    sequences = [data[number].tolist() for number in range(len(data))]
    read[name] = [sequences, data.document_indices.tolist()]
print(json.dumps(read))
"""
    for name in ("gpt2", "qwen3"):
        (tmp_path / name).mkdir()
        for case, (given, flags) in megatron_lm_tool.CASES.items():
            ours(DATA / f"{given}.jsonl", tmp_path / name / case, DATA / name, flags, 1)
    told = subprocess.check_output([sys.executable, "-c", script], text=True)
    for name, (sequences, ends) in json.loads(told.splitlines()[-1]).items():
        index = indexed.open_index(tmp_path / name)
        assert [len(sequence) for sequence in sequences] == next(index.lengths()).tolist()
        assert ends == next(index.ends()).tolist()
    assert len(ends) == 10


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    text = "The river runs north, and it is 12.5 km long; 東京は日本の首都である。 " * 60
    block = (json.dumps({"text": text, "title": "x"}) + "\n").encode() * 2000
    path = tmp_path / "in.jsonl"
    with open(path, "wb") as file:
        for _ in range(60):
            file.write(block)
    given = ["--tokenizer", DATA / "gpt2", "--out", tmp_path / "x", "--workers", "2"]
    command = [sys.executable, "-m", "flows.cli", "tokenize", path, *given]
    child, peaks = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=DATA.parents[2]), {}
    while child.poll() is None:
        peaks |= high_water(child.pid)
        time.sleep(0.02)
    assert child.returncode == 0
    assert path.stat().st_size > 500 << 20
    assert sum(peaks.values()) < 400 << 10
    shutil.rmtree(tmp_path)


def high_water(pid: int) -> dict[int, int]:
    """The largest resident set so far, in KiB, of a process and of those it started, by id."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    told = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    found = {pid: int(told[0])} if told else {}
    for child in children:
        found |= high_water(int(child))
    return found
