"""Corpora that are no dumps, from their files to documents: all formats say the same."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from tasks.clean.task import CleanConfig, clean
from tasks.core.artifacts import CleanCorpus
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.ingest.task import IngestConfig, ingest

QUIET = {"workers": 1, "splitter": "none", "min_words": 5, "duplicates": "keep"}


def _prose(number: int) -> str:
    return (
        f"The town of number {number} has {number * 2 + 2} houses, and it is known for the bridge "
        f"that was built in {1801 + number} by the people of the valley.\n"
        f"A school for {number * 4 + 4} children opened behind the church during {1803 + number}, "
        "although most families still needed every pair of hands at harvest."
    )


ROWS = [
    {"id": f"{n}", "url": f"https://x.org/{n}", "title": f"Town {n}", "text": _prose(n)}
    for n in range(40)
]


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _clean(tmp_path: Path, source: Path | tuple[str, ...], **config: Any) -> CleanCorpus:
    store = Store(tmp_path / "store")
    given = source if isinstance(source, tuple) else str(source)
    raw = ingest.build(store, IngestConfig(source=given)).artifact
    options = CleanConfig(**QUIET | config)
    artifact = clean.build(store, options, {"corpus": raw}).artifact
    assert isinstance(artifact, CleanCorpus)
    return artifact


def _documents(corpus: CleanCorpus) -> list[dict[str, Any]]:
    return [json.loads(line) for path in corpus.shards for line in path.read_bytes().splitlines()]


def _report(corpus: CleanCorpus) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((corpus.data / "report.json").read_bytes())
    return report


def test_every_format_gives_the_same_documents(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    (folder / "text").mkdir(parents=True)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(_lines(ROWS)))
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "b.parquet", row_group_size=9)
    formats = ["a.jsonl.gz", "b.parquet"]
    try:
        import zstandard
    except ImportError:
        pass
    else:
        (folder / "c.jsonl.zst").write_bytes(zstandard.compress(_lines(ROWS)))
        formats.append("c.jsonl.zst")
    for row in ROWS:
        (folder / "text" / f"{row['title']}.txt").write_text(row["text"])
    found = _documents(_clean(tmp_path, folder))
    wanted = {row["title"]: row["text"] for row in ROWS}
    for name in formats:
        own = [document for document in found if document["source"] == f"00-all/{name}"]
        assert [document["id"] for document in own] == [row["id"] for row in ROWS]
        assert [document["url"] for document in own] == [row["url"] for row in ROWS]
        assert {document["title"]: document["text"] for document in own} == wanted
        assert {document["language"] for document in own} == {"en"}
    texts = [document for document in found if document["source"].endswith(".txt")]
    assert {document["title"]: document["text"] for document in texts} == wanted
    assert texts[0]["id"] == "00-all/text/Town 0.txt:0"
    once = _clean(tmp_path, folder, duplicates="exact")
    assert once.metrics["articles"] == len(ROWS)
    assert once.metrics["duplicate"] == len(ROWS) * len(formats)


def test_a_dump_beside_rows_under_other_names(tmp_path: Path) -> None:
    dump = Path(__file__).parents[1] / "data" / "wiki" / "english.xml"
    rows = [{"body": {"en": row["text"]}, "lang": "simple"} for row in ROWS[:3]]
    rows += [{"body": {"en": None}, "lang": "simple"}, {"body": "nothing", "lang": "simple"}]
    (tmp_path / "rows.jsonl").write_bytes(_lines(rows))
    corpus = _clean(
        tmp_path, (str(tmp_path / "rows.jsonl"), str(dump)),
        text_field="body.en", language_field="lang",
    )  # fmt: skip
    found = _documents(corpus)
    assert [document["language"] for document in found] == ["simple"] * 3 + ["en"] * 2
    assert found[1]["id"] == f"00-rows/rows.jsonl:{found[1]['range'][0]}"
    assert (corpus.metrics["without_text"], corpus.metrics["set_aside"]) == (1, 1)
    (bad,) = _report(corpus)["set_aside"]
    assert bad["error"] == "no field `body.en` among ['body', 'lang']"
    raw = (tmp_path / "rows.jsonl").read_bytes()
    assert json.loads(raw[slice(*found[2]["range"])]) == rows[2]


def test_damage_costs_what_is_behind_it_in_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    packed = gzip.compress(b"<mediawiki><page><title>T</title></page></mediawiki>")
    (folder / "a.xml.gz").write_bytes(packed[:20])
    (folder / "b.jsonl").write_bytes(_lines(ROWS[:3]))
    (folder / "c.txt").write_text(" \n")
    (folder / "d.txt.gz").write_bytes(gzip.compress(_prose(9).encode())[:-12])
    with pytest.raises(InputError, match=r"a\.xml\.gz.*after 0 whole pages"):
        _clean(tmp_path, folder)
    corpus = _clean(tmp_path, folder, on_damage="keep")
    report = _report(corpus)
    assert [told.partition(":")[0] for told in report["damage"]] == [
        "00-all/a.xml.gz", "00-all/d.txt.gz",
    ]  # fmt: skip
    assert report["sources"] == {
        "files": 4, "without_articles": 3,
        "first": [
            {"name": f"00-all/{name}", "pages": pages, "articles": articles}
            for name, pages, articles in (
                ("a.xml.gz", 0, 0), ("b.jsonl", 3, 3), ("c.txt", 1, 0), ("d.txt.gz", 0, 0),
            )
        ],
    }  # fmt: skip
    assert sum(report["whereabouts"].values()) == report["pages"] == 4


@pytest.mark.parametrize("seed", range(2))
def test_mutated_rows_are_all_accounted_for(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    data = bytearray(_lines(ROWS * 50))
    for _ in range(3000):
        data[dice.randrange(len(data))] = dice.choice((dice.randrange(256), *b'\n"{}[\\\0'))
    (tmp_path / "x.jsonl").write_bytes(data)
    corpus = _clean(tmp_path, tmp_path / "x.jsonl")
    report = _report(corpus)
    rows = sum(bool(line.strip()) for line in bytes(data).split(b"\n"))
    assert report["pages"] == rows
    assert sum(report["whereabouts"].values()) == rows
    assert min(corpus.metrics["set_aside"], corpus.metrics["articles"]) > 500
    assert len(_documents(corpus)) == corpus.metrics["articles"]
    assert all(page["error"] and page["id"].startswith("x.jsonl:") for page in report["set_aside"])
