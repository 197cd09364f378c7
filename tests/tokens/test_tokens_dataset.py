"""Token datasets: Megatron's own reader and writer, the tokenizer's own ids, and the splits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from tasks.core.errors import ConfigError, InputError, ProofError
from tasks.core.stage import Context
from tasks.tokens import indexed, invariants, lines, shards, tokenizer
from tasks.tokens.task import TokensConfig, tokens

TOY = Path(__file__).parents[2] / "deploy" / "recipes" / "toy"
SPLITS = ("train", "validation", "test")
VOCABULARIES = (65_499, 65_500)
RAW = [[5, 6, 0], [0], list(range(300)), [65_498, 7, 0]]
WORDS = ["The river runs north.\n", "東京 is a city; ", "12 km  in 1999", "a", " 🙂\n\n\n"]
DOCUMENTS = [
    {"id": str(1000 + i), "title": f"No. {i}", "text": "".join(WORDS[: 1 + i % 5]) * (1 + i % 7)}
    for i in range(120)
]


class Folder:
    """Stands for a sealed output."""

    def __init__(self, folder: Path, shards: list[Path] | None = None) -> None:
        self.folder, self.shards = folder, shards or []


def write_shards(folder: Path, documents: list[dict[str, Any]], count: int = 2) -> list[Path]:
    paths = []
    for part in range(count):
        paths.append(folder / f"part-{part:05d}.jsonl")
        lines = [json.dumps(document) + "\n" for document in documents[part::count]]
        paths[-1].write_text("".join(lines), encoding="utf-8")
    return paths


def run(out: Path, shards: list[Path], model: Path = TOY, **config: Any) -> dict[str, Any]:
    """Run the stage's function and its check."""
    out.mkdir(exist_ok=True)
    scratch = out.with_name(f"{out.name}.scratch")
    ctx = Context(out, scratch, lambda *_, **__: None)
    settings = TokensConfig(**{"workers": 1, "validation": 0.1, "test": 0.1, **config})
    metrics = tokens(settings, ctx, corpus=Folder(model, shards), model=Folder(model))
    assert tokens.check is not None
    tokens.check(out, metrics)
    return metrics


def listed(out: Path, name: str = "documents.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("tokens")
    return folder / "out", run(folder / "out", write_shards(folder, DOCUMENTS))


@pytest.fixture(scope="module")
def megatron(built: tuple[Path, dict[str, Any]], tmp_path_factory: Any) -> dict[str, Any]:
    """What Megatron's own classes read and write, all in one process: importing it takes long."""
    folder = tmp_path_factory.mktemp("megatron")
    script = f"""
import json, torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder

for vocab_size in {VOCABULARIES}:
    prefix = f"{folder}/{{vocab_size}}"
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=DType.optimal_dtype(vocab_size))
    for ids in {RAW}:
        builder.add_document(torch.tensor(ids), [len(ids)])
    builder.finalize(prefix + ".idx")

class Tokenizer:
    eod, vocab_size, unique_identifiers = 0, 331, {{}}

prefixes = [f"{built[0]}/{{split}}" for split in {SPLITS}]
datasets = [IndexedDataset(prefix) for prefix in prefixes]
config = GPTDatasetConfig(
    random_seed=1, sequence_length=32, path_to_cache="{folder}/cache",
    blend_per_split=[([prefix], None) for prefix in prefixes], tokenizer=Tokenizer(),
    reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
    create_attention_mask=False)
samples = BlendedMegatronDatasetBuilder(GPTDataset, [20, 5, 5], lambda: True, config).build()
print(json.dumps({{
    "documents": {{s: [d[i].tolist() for i in range(len(d))] for s, d in zip({SPLITS}, datasets)}},
    "indices": [d.document_indices.tolist() for d in datasets],
    "samples": [[len(d), d[0]["tokens"].tolist()] for d in samples],
}}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {"folder": folder, **json.loads(done.stdout.splitlines()[-1])}


def test_megatron_reads_each_document_as_the_tokenizer_encodes_it(
    built: tuple[Path, dict[str, Any]], megatron: dict[str, Any]
) -> None:
    out, metrics = built
    read, counted = megatron["documents"], {}
    for split, indices in zip(SPLITS, megatron["indices"], strict=True):
        assert indices == list(range(len(read[split]) + 1))
        counted[split] = {"documents": len(read[split]), "tokens": sum(map(len, read[split]))}
    assert metrics["splits"] == counted
    tokenizer = AutoTokenizer.from_pretrained(TOY)
    texts = {document["id"]: document["text"] for document in DOCUMENTS}
    assert {document["id"] for document in listed(out)} == set(texts)
    for document in listed(out):
        ids = read[document["split"]][document["index"]]
        expected = tokenizer.encode(texts[document["id"]], add_special_tokens=False)
        assert ids == [*expected, tokenizer.convert_tokens_to_ids("<|endoftext|>")]
        assert document["tokens"] == len(ids)
    assert metrics["tokens"] == sum(split["tokens"] for split in counted.values())
    assert metrics["bytes"] == 2 * metrics["tokens"]
    assert (metrics["vocab_size"], metrics["padded_vocab_size"]) == (331, 384)
    assert json.loads((out / "tokens.json").read_text()) == metrics


def test_gpt_dataset_builds_on_them(megatron: dict[str, Any]) -> None:
    assert [len(ids) for _, ids in megatron["samples"]] == [32, 32, 32]
    assert megatron["samples"][0][0] >= 20


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_files_are_megatrons_to_the_byte(
    megatron: dict[str, Any], tmp_path: Path, vocab_size: int
) -> None:
    with indexed.Writer(tmp_path / "ours", indexed.best_dtype(vocab_size)) as writer:
        for part in (RAW[:2], [], RAW[2:]):
            flat = np.array([number for ids in part for number in ids], np.int64)
            writer.add(flat, np.array([len(ids) for ids in part], np.int32))
    theirs = megatron["folder"] / str(vocab_size)
    for suffix in (".bin", ".idx"):
        assert Path(f"{theirs}{suffix}").read_bytes() == (tmp_path / f"ours{suffix}").read_bytes()
    read = invariants.read(theirs)
    sequences = np.split(read.values, np.cumsum(read.lengths)[:-1])
    assert [sequence.tolist() for sequence in sequences] == RAW
    assert read.documents.tolist() == list(range(len(RAW) + 1))


def test_workers_and_ranges_do_not_change_a_byte(
    built: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = built
    shards = write_shards(tmp_path, DOCUMENTS)
    # Ranges that begin and end in the middle of lines.
    monkeypatch.setattr(lines, "_SMALLEST", 333)
    monkeypatch.setattr(lines, "_LARGEST", 333)
    assert len(list(lines.blocks(shards))) > 20
    run(tmp_path / "one", shards)
    run(tmp_path / "two", shards, workers=2)
    for file in sorted(out.iterdir()):
        for other in ("one", "two"):
            assert (tmp_path / other / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_documents_split_depends_on_its_id_alone(
    built: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    before = {document["id"]: document["split"] for document in listed(built[0])}
    # In another order, fewer, with other texts, and one of them twice.
    fewer = [{**document, "text": "other"} for document in [*DOCUMENTS[::-2], DOCUMENTS[-1]]]
    run(tmp_path / "out", write_shards(tmp_path, fewer, 1))
    after = listed(tmp_path / "out")
    assert all(before[document["id"]] == document["split"] for document in after)
    assert len(after) == 61
    assert len({(document["id"], document["split"]) for document in after}) == 60
    run(tmp_path / "dealt", write_shards(tmp_path, DOCUMENTS), seed=2)
    assert {d["id"]: d["split"] for d in listed(tmp_path / "dealt")} != before


def test_what_is_no_document_is_set_aside_and_counted(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, DOCUMENTS[:60], 1)
    good = shards[0].read_text()
    bad = ['{"id": 1, "text": "cut sho\n', "\n", '"text"\n', '{"text": "x"}\n', '{"id": 7}\n']
    shards[0].write_text("".join(bad) + good + '{"id": "8", "text": "\n' + '{"id": "9", "te')
    metrics = run(tmp_path / "out", shards)
    aside = [
        json.loads(line) for line in (tmp_path / "out/set_aside.jsonl").read_text().splitlines()
    ]
    missing = ["no JSON object", "no document with an id", "no text"]
    reasons = ["no JSON", "an empty line", *missing]
    assert [entry["reason"] for entry in aside] == [*reasons, "no JSON", "no JSON"]
    assert aside[1]["offset"] == len(bad[0])
    assert (metrics["set_aside"], metrics["documents"]) == (7, 60)


def test_a_document_tells_where_it_came_from(tmp_path: Path) -> None:
    told = {"revision": "77", "source": "wiki/dump.xml.bz2", "range": [12, 345]}
    carried = [{**document, "url": "no", **told} for document in DOCUMENTS[:60]]
    shards = write_shards(tmp_path, [*carried, *DOCUMENTS[60:]], 1)
    run(tmp_path / "out", shards)
    raw = shards[0].read_bytes()
    for number, entry in enumerate(listed(tmp_path / "out")):
        assert (entry["id"], entry["title"]) == (str(1000 + number), f"No. {number}")
        if number < 60:
            assert {key: entry[key] for key in told} == told
            assert "url" not in entry
            continue
        # Of a document that does not say: its place in the corpus at hand.
        assert entry["source"] == shards[0].name
        start, stop = entry["range"]
        assert json.loads(raw[start:stop])["id"] == entry["id"]


def test_killed_in_the_middle_the_stage_goes_on(
    built: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_shards(tmp_path, DOCUMENTS)
    monkeypatch.setattr(lines, "_SMALLEST", 333)
    monkeypatch.setattr(lines, "_LARGEST", 333)
    total, encode_block = len(list(lines.blocks(files))), shards.encode_block
    encoded: list[int] = []

    def dies(job: Any, folder: Path, block: lines.Block) -> None:
        if len(encoded) == 9:
            encoded.append(-1)
            raise KeyboardInterrupt
        encode_block(job, folder, block)
        encoded.append(block.number)

    monkeypatch.setattr(shards, "encode_block", dies)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out", files)
    # As the store does before another attempt.
    for file in (tmp_path / "out").iterdir():
        file.unlink()
    run(tmp_path / "out", files)
    assert sorted(encoded) == [-1, *range(total)]
    for file in built[0].iterdir():
        if file.name != "tokens.json":
            assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, DOCUMENTS[:3], 1)
    with pytest.raises(ProofError, match=r"split is empty.*tokens\.(validation|test)"):
        run(tmp_path / "out", shards, validation=0.01, test=0.01)
    metrics = run(tmp_path / "all", shards, validation=0, test=0)
    assert metrics["splits"]["train"]["documents"] == 3


def test_splits_must_leave_something_to_train_on() -> None:
    with pytest.raises(ConfigError, match="less than 1"):
        TokensConfig(validation=0.5, test=0.5)


def model_with(folder: Path, vocab_size: int = 331, **changes: Any) -> Path:
    """The toy's folder with another tokenizer or vocabulary."""
    folder.mkdir()
    for file in TOY.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": vocab_size}))
    text = (folder / "tokenizer.json").read_text()
    for old, new in changes.pop("rename", {}).items():
        text = text.replace(old, new)
    (folder / "tokenizer.json").write_text(text)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **changes}))
    return folder


def test_end_of_document_is_the_documents_and_not_the_turns(
    built: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    assert built[1]["end_of_document_token"] == "<|endoftext|>"
    assert AutoTokenizer.from_pretrained(TOY).eos_token == "<|im_end|>"
    shards = write_shards(tmp_path, DOCUMENTS)
    chosen = run(tmp_path / "chosen", shards, end_of_document="<|im_start|>")
    assert chosen["end_of_document"] == 1
    renamed = model_with(tmp_path / "m", rename={"<|endoftext|>": "<x>"}, unk_token=None)
    assert run(tmp_path / "eos", shards, renamed)["end_of_document_token"] == "<|im_end|>"


def test_a_tokenizer_without_end_of_document_is_refused(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, DOCUMENTS)
    none = model_with(
        tmp_path / "m", rename={"<|endoftext|>": "<x>"}, unk_token=None, eos_token=None
    )
    with pytest.raises(InputError, match="no end-of-document token"):
        run(tmp_path / "none", shards, none)
    with pytest.raises(InputError, match="<never>"):
        run(tmp_path / "wrong", shards, end_of_document="<never>")


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path: Path) -> None:
    small = model_with(tmp_path / "m", vocab_size=330)
    with pytest.raises(InputError, match=r"vocab_size 330.*id 330"):
        tokenizer.prepare(small, tmp_path)


def test_truncation_of_the_tokenizer_does_not_cut_documents(tmp_path: Path) -> None:
    cut = model_with(tmp_path / "m")
    settings = json.loads((cut / "tokenizer.json").read_text())
    settings["truncation"] = {
        "max_length": 4, "stride": 0, "strategy": "LongestFirst", "direction": "Right"
    }  # fmt: skip
    (cut / "tokenizer.json").write_text(json.dumps(settings))
    run(tmp_path / "out", write_shards(tmp_path, DOCUMENTS), cut)
    assert max(document["tokens"] for document in listed(tmp_path / "out")) > 50


def test_the_check_sees_what_was_changed_afterwards(tmp_path: Path) -> None:
    assert tokens.check is not None
    metrics = run(tmp_path / "out", write_shards(tmp_path, DOCUMENTS))
    data = tmp_path / "out" / "test.bin"
    whole = data.read_bytes()
    data.write_bytes(whole[:-2] + b"\x05\x00")
    with pytest.raises(ProofError, match="end-of-document"):
        tokens.check(tmp_path / "out", metrics)
    data.write_bytes(whole[:-2])
    with pytest.raises(ProofError, match="do not fit"):
        tokens.check(tmp_path / "out", metrics)
    data.write_bytes(whole)
    index = tmp_path / "out" / "test.idx"
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(ProofError, match="contradicts"):
        tokens.check(tmp_path / "out", metrics)


def test_workers_load_neither_torch_nor_transformers() -> None:
    script = (
        "import sys, tasks.tokens.encode, tasks.tokens.dataset, tasks.tokens.preprocess;"
        "print([m for m in ('torch', 'transformers', 'megatron') if m in sys.modules])"
    )
    found = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert found.strip() == "[]"
