"""`megaline explain` on a dump, rows and Parquet, held against what these files say themselves."""

from __future__ import annotations

import bz2
import gzip
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from pydantic import BaseModel
from tokenizers import Tokenizer

from flows.cli import _guarded, main
from flows.explain import explained
from tasks.clean.task import CleanConfig, clean
from tasks.core import sources
from tasks.core.artifacts import HFModel, Split
from tasks.core.stage import Context, stage
from tasks.core.store import Store
from tasks.ingest.task import IngestConfig, ingest
from tasks.tokens import indexed
from tasks.tokens.task import TokensConfig, tokens

TOY = Path(__file__).parents[2] / "deploy" / "recipes" / "toy"
DUMP = sources.locate(
    "package://gensim/test/test_data/"
    "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
)
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
CONTROLS = "\x1b\x9b\u202e\r\x07"
ROWS = [
    {
        "id": f"r{n}", "revision": f"{n}00", "title": f"Town {n}{CONTROLS}", "url": f"u:{n}",
        "text": f"The town of number {n} has {n + 2} houses, and it is known for the bridge that "
        f"was built in {1801 + n} by the people of the valley.\nA school for {n + 4} children "
        f"opened behind the church during {1803 + n}, although most families needed every hand.",
    }
    for n in range(60)
]  # fmt: skip


class Nothing(BaseModel):
    """A model has no choices here."""


@stage("model", version=1, output=HFModel, label=lambda config, inputs: "toy")
def toy(config: Nothing, ctx: Context) -> dict[str, Any]:
    """A folder with a tokenizer."""
    shutil.copytree(TOY, ctx.out, dirs_exist_ok=True)
    return {}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed output of tokens, in a store with all that it was made from."""
    folder = tmp_path_factory.mktemp("explain")
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS[:40])
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(lines))
    table = pyarrow.Table.from_pylist(ROWS[40:])
    parquet.write_table(table, folder / "rows.parquet", row_group_size=7)
    files = [folder / "rows.jsonl.gz", DUMP, folder / "rows.parquet"]
    store = Store(folder / "store")
    raw = ingest.build(store, IngestConfig(source=tuple(map(str, files)))).artifact
    plain = CleanConfig(workers=1, splitter="none", min_words=5, duplicates="keep", shard_mib=1)
    corpus = clean.build(store, plain, {"corpus": raw}).artifact
    model = toy.build(store, Nothing()).artifact
    deal = TokensConfig(workers=1, validation=0.1, test=0.1)
    return tokens.build(store, deal, {"corpus": corpus, "model": model}).artifact.path


@pytest.fixture(scope="module")
def every(dataset: Path) -> list[dict[str, Any]]:
    """What is told of every document."""
    counts = json.loads((dataset / "data/tokens.json").read_bytes())["splits"]
    return [
        explained(dataset, split, number, None)
        for split in SPLITS
        for number in range(counts[split]["documents"])
    ]


def cut(place: dict[str, Any]) -> bytes:
    start, stop = place["range"]
    return Path(place["file"]).read_bytes()[start:stop]


def page_at(data: bytes) -> tuple[str, str, str]:
    page = ElementTree.fromstring(data)
    found = [page.findtext(path) for path in ("id", "title", "revision/id")]
    assert all(found)
    return tuple(map(str, found))  # type: ignore[return-value]


def said(one: dict[str, Any]) -> tuple[str, str, str]:
    return one["id"], one["title"], one["revision"]


def test_the_range_holds_the_page_that_is_named(every: list[dict[str, Any]]) -> None:
    dump = bz2.decompress(DUMP.read_bytes())
    rows = gzip.decompress(Path(every[0]["raw"]["file"]).read_bytes())
    table = parquet.read_table(
        next(e for e in every if e["source"]["unit"] == "rows")["raw"]["file"]
    )
    kinds = {"dump": 0, "jsonl": 0, "parquet": 0}
    for one in every:
        start, stop = one["source"]["range"]
        if one["source"]["unit"] == "rows":
            kinds["parquet"] += 1
            (row,) = table.slice(start, stop - start).to_pylist()
        elif ".jsonl" in one["source"]["file"]:
            kinds["jsonl"] += 1
            row = json.loads(rows[start:stop])
        else:
            kinds["dump"] += 1
            assert page_at(dump[start:stop]) == said(one)
            # The control: one page before, it is another.
            before = dump.rindex(b"<page>", 0, start)
            assert page_at(dump[before:start].rstrip()) != said(one)
            continue
        assert {key: one[key] for key in ("id", "title", "revision")}.items() <= row.items()
        assert one["clean"]["url"] == row["url"]
    assert kinds["dump"] > 100
    assert (kinds["jsonl"], kinds["parquet"]) == (40, 20)


def test_ids_and_clean_text_are_those_of_the_page(every: list[dict[str, Any]]) -> None:
    tokenizer = Tokenizer.from_file(str(TOY / "tokenizer.json"))
    for one in every:
        line = json.loads(cut(one["clean"]))
        assert (line["id"], line["title"], line["revision"]) == said(one)
        ids = np.frombuffer(cut(one["tokens"]), "<u2")
        assert len(ids) == one["tokens"]["count"]
        text = tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        assert text == line["text"] + "<|endoftext|>"
        assert len(one["begins"]) > 20
        assert text.startswith(one["begins"])
    assert len({one["clean"]["file"] for one in every}) > 1


def test_a_token_lies_where_counting_finds_it(dataset: Path) -> None:
    for split in SPLITS:
        ids = np.fromfile(dataset / f"data/{split}.bin", "<u2")
        (ends,) = np.nonzero(ids == ids[-1])
        numbers = {0, len(ids) - 1, *ends[:3].tolist(), *(ends[:3] + 1).tolist(), len(ids) // 2}
        for number in sorted(numbers):
            found = explained(dataset, split, None, number)
            document = int((ids[:number] == ids[-1]).sum())
            offset = number - (int(ends[document - 1]) + 1 if document else 0)
            assert found["tokens"]["document"] == document
            assert (found["token"]["offset"], found["token"]["id"]) == (offset, ids[number])
            assert found == explained(dataset, split, document, None) | {"token": found["token"]}


def test_the_command_that_is_told_prints_the_source(every: list[dict[str, Any]]) -> None:
    told = {one["raw"]["command"].split()[0]: one for one in every if one["raw"]["command"]}
    assert set(told) == {"bzcat", "zcat"}
    for one in told.values():
        done = subprocess.run(
            ["bash", "-c", one["raw"]["command"]], capture_output=True, check=True
        )
        start, stop = one["source"]["range"]
        opened = bz2.open if one["raw"]["file"].endswith("bz2") else gzip.open
        with opened(one["raw"]["file"]) as file:
            assert done.stdout == file.read()[start:stop]


def test_as_text(dataset: Path, every: list[dict[str, Any]], capsys: Any) -> None:
    assert _guarded(["explain", str(dataset), "--token", "5000"]) == 0
    told = capsys.readouterr().out
    for wanted in json.loads((dataset / "artifact.json").read_bytes())["inputs"]:
        assert f"  made from    {wanted['stage']}/{wanted['label']}/{wanted['fingerprint']}" in told
    assert "(gone)" not in told
    assert "  token        5000, number " in told
    number = next(n for n, one in enumerate(every) if one["title"].startswith("Town"))
    assert _guarded(["explain", str(dataset / "data"), "--document", str(number)]) == 0
    told = capsys.readouterr().out
    assert not set(told) & set(CONTROLS)
    assert told.startswith("Town ")
    assert _guarded(["explain", str(dataset), "--document", str(number), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == every[number]


def test_what_is_gone_is_said(dataset: Path, every: list[dict[str, Any]], tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(dataset.parents[2], store)
    moved = store / dataset.relative_to(dataset.parents[2])
    raw = store / Path(every[0]["raw"]["file"]).relative_to(dataset.parents[2])
    raw.unlink()
    found = explained(moved, "train", 0, None)
    assert found["raw"] is None
    assert found["clean"]["range"] == every[0]["clean"]["range"]
    assert found["source"] == every[0]["source"] | {"unit": None}
    (reason,) = found["unknown"]
    assert reason.startswith("the source's place, size and digest: ingest/")
    shutil.rmtree(store / "clean")
    found = explained(moved, "train", 0, None)
    assert (said(found), found["clean"]) == (said(every[0]), None)
    assert [one["sealed"] for one in found["chain"]] == [True, False, True]
    assert [reason.split(" ")[-1] for reason in found["unknown"]] == ["store", "store"]


def refused(capsys: Any, *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["explain", *map(str, arguments)])
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return int(str(ended.value.code)), told


@pytest.mark.parametrize(
    ("place", "options", "says"),
    [
        ("", "", "Expected: one of them. Got: neither"),
        ("", "--document 1 --token 1", "Expected: one of them. Got: both"),
        ("", "--document -1", "Got: -1; it has "),
        ("", "--document 5000", "Expected: 0 to "),
        ("", "--token 999999999 --split test", "Got: 999999999; it has "),
        ("", "--document 0 --split eval", "Choose from"),
        ("data/train", "--document 0", "`megaline show-tokens` prints their text"),
        ("../nothing", "--document 0", "There is no sealed output"),
        ("../../../clean/*/*", "--document 0", "Got: one of clean"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    dataset: Path, place: str, options: str, says: str, capsys: Any
) -> None:
    path = next(dataset.glob(place)) if "*" in place else dataset / place
    code, told = refused(capsys, path, *options.split())
    assert code == 2
    assert says in told


def test_an_empty_split_has_no_documents(dataset: Path, tmp_path: Path, capsys: Any) -> None:
    moved = tmp_path / "a" / "tokens" / "b" / "c"
    shutil.copytree(dataset, moved)
    for end in ("bin", "idx"):
        (moved / f"data/test.{end}").unlink()
    with indexed.Writer(moved / "data/test", np.dtype("<u2")):
        pass
    for option in ("--document", "--token"):
        assert "it has 0 " in refused(capsys, moved, option, 0, "--split", "test")[1]


def test_files_that_contradict_each_other(dataset: Path, tmp_path: Path, capsys: Any) -> None:
    store = tmp_path / "store"
    shutil.copytree(dataset.parents[2], store)
    moved = store / dataset.relative_to(dataset.parents[2])
    (part, *_) = sorted(store.glob("clean/*/*/data/part-*.jsonl"))
    part.chmod(0o644)
    whole = part.read_bytes()
    part.write_bytes(whole.replace(b'"id": "r', b'"id": "s'))
    code, told = refused(capsys, moved, "--document", 0)
    assert (code, "does not fit the tokens" in told) == (1, True)
    listing = moved / "data/documents.jsonl"
    listing.chmod(0o644)
    listing.write_bytes(listing.read_bytes().replace(b'"tokens":', b'"tokens":1'))
    code, told = refused(capsys, moved, "--document", 0)
    assert (code, "The list of the documents does not fit the tokens" in told) == (1, True)


def test_a_conversation_of_chat_data(tmp_path: Path, capsys: Any) -> None:
    texts = [f"What is {n}?" * (n + 1) for n in range(30)]
    chats = [
        {"id": f"c{n}", "messages": [{"role": "user", "content": text},
                                     {"role": "assistant", "content": "Yes."}]}
        for n, text in enumerate(texts)
    ]  # fmt: skip
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, chats)))
    out = tmp_path / "out" / "train"
    command = ["tokenize-chat", tmp_path / "chat.jsonl", "--model", TOY, "--out", out]
    assert _guarded([*map(str, command), "--sequence-length", "400", "--workers", "1"]) == 0
    capsys.readouterr()
    rows = (tmp_path / "chat.jsonl").read_bytes()
    tokenizer = Tokenizer.from_file(str(TOY / "tokenizer.json"))
    for number in range(30):
        one = explained(out, "train", number, None)
        row = json.loads(rows[slice(*one["source"]["range"])])
        ids = np.frombuffer(cut(one["tokens"]), "<u2").tolist()
        text = tokenizer.decode(ids, skip_special_tokens=False)
        assert row["id"] == one["id"]
        assert f"user\n{row['messages'][0]['content']}<|im_end|>" in text
        last = one["tokens"]["first"] + one["tokens"]["count"] - 1
        assert explained(out, "train", None, last)["id"] == one["id"]
    assert one["tokens"]["pack"] > 1
    assert _guarded(["explain", str(out.parent), "--document", "3"]) == 0
    assert ", in pack " in capsys.readouterr().out
