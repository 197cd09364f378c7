"""Lines of a corpus that are no document, and where they are said to lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import InputError
from tasks.tokens import dataset, lines, tokenizer
from tasks.tokens.encode import Job, Splits
from tasks.tokens.indexed import code_of

TOY = Path(__file__).parents[2] / "deploy" / "recipes" / "toy"
GOOD = {"id": "one", "text": "a text"}


def write(folder: Path, rows: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """What is listed and what is set aside, where `~` is nothing to the tokenizer."""
    described = json.loads((TOY / "tokenizer.json").read_text())
    described["normalizer"] = {"type": "Replace", "pattern": {"String": "~"}, "content": ""}
    for name in ("out", "scratch"):
        (folder / name).mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(described))
    (folder / "part").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepared = tokenizer.prepare(folder / "tokenizer.json", folder / "out")
    job = Job(
        prepared.spec, code_of(prepared.size), prepared.end_of_document, splits=Splits(0, 0, 1)
    )
    dataset.write([folder / "part"], folder / "out", folder / "scratch", job, 1, lambda *_, **__: 0)
    told = [folder / "out" / name for name in ("documents.jsonl", "set_aside.jsonl")]
    listed, aside = ([json.loads(line) for line in path.read_text().splitlines()] for path in told)
    return listed, aside


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"id": None, "text": "x"}, "no document with an id"),
        ({"id": ["x"], "text": "x"}, "no document with an id"),
        ({"id": "\ud83d", "text": "x"}, "no document with an id"),
        ({"id": "x", "text": ["in", "pieces"]}, "no text"),
        ({"id": "x", "text": []}, "no text"),
        # Its place in its source is not that in the corpus.
        ({"id": "x", "text": "~", "source": "dump", "range": [7, 9]}, "no tokens"),
        ({"id": "x", "text": "~", "range": None}, "no tokens"),
        ({"id": 8, "text": "x", "title": "\ud83d"}, None),
        ({"id": "x", "text": "x", "range": None}, None),
    ],
)
def test_what_is_set_aside_and_where_it_lies(
    tmp_path: Path, row: dict[str, Any], reason: str | None
) -> None:
    listed, aside = write(tmp_path, [GOOD, row, GOOD])
    place = {"shard": "part", "offset": len(json.dumps(GOOD)) + 1, "reason": reason}
    assert aside == ([place] if reason else [])
    wanted = ["one", "one"] if reason else ["one", str(row["id"]), "one"]
    assert [entry["id"] for entry in listed] == wanted
    assert [entry["index"] for entry in listed] == list(range(len(wanted)))


def test_the_mark_before_a_file_costs_no_document(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\xef\xbb\xbf\n{"text": "b"}')
    found = lines.lines(lines.Block(0, tmp_path / "x", 0, 99, None, 0))
    assert [lines.parse(line) for line in found] == [{"text": "a"}, "no JSON", {"text": "b"}]


@pytest.mark.parametrize("size", ["x", [7], 1.5, None])
def test_a_vocabulary_size_that_is_none(tmp_path: Path, size: Any) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in TOY.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    (model / "config.json").write_text(json.dumps({"vocab_size": size, "text_config": None}))
    if size is None:
        assert tokenizer.prepare(model, tmp_path).vocab_size > 0
        return
    with pytest.raises(InputError, match="how many ids"):
        tokenizer.prepare(model, tmp_path)
