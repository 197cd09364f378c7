"""clean as a stage: every page accounted for, the same bytes for any number of workers."""

from __future__ import annotations

import bz2
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.clean import corpus as corpus_room
from tasks.clean import documents, pages
from tasks.clean.task import CleanConfig, check, clean
from tasks.core.artifacts import CleanCorpus, RawCorpus
from tasks.core.errors import InputError, ProofError
from tasks.core.store import Address, Store, Work
from tasks.ingest.task import IngestConfig, ingest

DATA = Path(__file__).parents[1] / "data" / "wiki"
SAMPLE = (
    "package://gensim/test/test_data/"
    "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
)
needs_gensim = pytest.mark.skipif(
    importlib.util.find_spec("gensim") is None, reason="the sample dump comes with gensim"
)

STONE_WALL = """\
The Stone Wall (built 1815) is a wall of 5 metres (16 ft) in the Examples. It has stood there for \
a very long time, and it is likely to stay.
History
It was built by the people of the town with the stones that they had.
The wall"""
GREAT_WALL = (
    "长城（Great Wall）是中国古代的军事工程，全长约21,196 km（13,171 mi）。"
    "它修筑于“春秋战国”时期，历代皆有修缮。"
    "今天的长城大多建于明代，是世界文化遗产，每年都有许多游客前来参观。\n长城一景"
)


def _raw(tmp_path: Path, source: object) -> RawCorpus:
    artifact = ingest.build(Store(tmp_path), IngestConfig(source=str(source))).artifact
    assert isinstance(artifact, RawCorpus)
    return artifact


def _clean(tmp_path: Path, source: object, **config: Any) -> CleanCorpus:
    config.setdefault("workers", 1)
    inputs = {"corpus": _raw(tmp_path, source)}
    outcome = clean.build(Store(tmp_path), CleanConfig(**config), inputs, force=True)
    assert isinstance(outcome.artifact, CleanCorpus)
    return outcome.artifact


def _documents(corpus: CleanCorpus) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for shard in corpus.shards
        for line in shard.read_text(encoding="utf-8").splitlines()
    ]


def _report(corpus: CleanCorpus) -> dict[str, Any]:
    return json.loads((corpus.data / "report.json").read_text(encoding="utf-8"))


def test_every_page_of_a_small_dump_is_accounted_for(tmp_path: Path) -> None:
    corpus = _clean(tmp_path, DATA / "english.xml")
    wall, tides = _documents(corpus)
    assert wall == {
        "id": "1",
        "url": "https://ex.example.org/wiki/Stone_Wall",
        "title": "Stone Wall",
        "language": "en",
        "text": STONE_WALL,
        "revision": "1001",
        "source": "english.xml",
        "range": [517, 1254],
    }
    page = (DATA / "english.xml").read_bytes()[slice(*wall["range"])]
    assert page.startswith(b"<page>\n    <title>Stone Wall</title>")
    assert page.endswith(b"</page>")
    assert tides["title"] == "Tide: rise & fall"
    assert tides["text"].splitlines()[1:] == [
        "Spring tides are high.", "Neap tides are low.", "month | height", "May | 3",
    ]  # fmt: skip
    metrics = corpus.metrics
    assert {name: value for name, value in metrics.items() if isinstance(value, int)} == {
        "pages": 7, "articles": 2, "redirects": 1, "other_namespaces": 1, "other_models": 1,
        "empty": 1, "too_few_words": 1, "characters_in": metrics["characters_in"],
        "characters_out": len(wall["text"]) + len(tides["text"]), "paragraphs": 9,
        "paragraphs_with_residue": 0, "templates_dropped": 4,
    }  # fmt: skip
    assert metrics["templates"] == {
        "infobox": 1, "infobox wall": 1, "ipac-en": 1, "reflist": 1,
    }  # fmt: skip


def test_a_chinese_page_keeps_its_punctuation(tmp_path: Path) -> None:
    (wall,) = _documents(_clean(tmp_path, DATA / "chinese.xml"))
    assert wall["text"] == GREAT_WALL
    assert wall["url"] == "https://zh.example.org/wiki/%E9%95%BF%E5%9F%8E"


@needs_gensim
def test_the_sample_of_the_english_wikipedia(tmp_path: Path) -> None:
    corpus = _clean(tmp_path, SAMPLE)
    metrics = corpus.metrics
    assert (metrics["pages"], metrics["articles"]) == (206, 106)
    assert (metrics["redirects"], metrics["other_namespaces"]) == (99, 1)
    assert metrics["paragraphs_with_residue"] / metrics["paragraphs"] < 0.001
    found = _documents(corpus)
    assert len({document["id"] for document in found}) == 106
    paragraphs = [line for document in found for line in document["text"].split("\n")]
    markup = re.compile(r"\[\[|\{\{|<ref|'''|&[a-z]+;|^=|\(\s*[;,]|[\x00-\x08]", re.M)
    assert [line for line in paragraphs if markup.search(line)] == []
    texts = {document["title"]: document["text"] for document in found}
    # What readers see there, and what template-blind cleaners lose.
    assert texts["Anarchism"].startswith("Anarchism is a political philosophy that advocates")
    assert (
        "about 500 miles (800 km) of British Columbia (Canada) separates Alaska" in texts["Alaska"]
    )
    assert 'The name "Alaska" (Аляска) was introduced' in texts["Alaska"]


@needs_gensim
def test_workers_do_not_change_a_byte(tmp_path: Path) -> None:
    one = _clean(tmp_path / "one", SAMPLE, shard_mib=1)
    two = _clean(tmp_path / "two", SAMPLE, shard_mib=1, workers=2)
    assert one.fingerprint == two.fingerprint
    assert one.record.files == two.record.files
    assert [path.name for path in one.shards] == [
        "part-00000.jsonl", "part-00001.jsonl", "part-00002.jsonl",
    ]  # fmt: skip
    assert all(path.stat().st_size >= 1 << 20 for path in one.shards[:-1])


def test_an_attempt_that_fails_leaves_its_shards_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*args: object) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(corpus_room, "assemble", lost)
        with pytest.raises(OSError, match="the disk is gone"):
            _clean(tmp_path, DATA / "english.xml")
    monkeypatch.setattr(documents, "_clean", lost)
    corpus = _clean(tmp_path, DATA / "english.xml")
    assert corpus.metrics["articles"] == 2
    assert not (corpus.path / "work").exists()


def test_a_page_that_fails_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pages.clean

    def fragile(text: str, *args: Any, **options: Any) -> Any:
        if "Stone Wall" in text:
            raise RuntimeError("cannot read this")
        return whole(text, *args, **options)

    monkeypatch.setattr(pages, "clean", fragile)
    corpus = _clean(tmp_path, DATA / "english.xml")
    assert [document["id"] for document in _documents(corpus)] == ["7"]
    assert _report(corpus)["set_aside"] == [
        {"id": "1", "title": "Stone Wall", "error": "RuntimeError: cannot read this"}
    ]
    assert corpus.metrics["set_aside"] == 1


def test_a_dump_that_ends_early(tmp_path: Path) -> None:
    data = (DATA / "english.xml").read_bytes()
    path = tmp_path / "cut.xml.bz2"
    path.write_bytes(bz2.compress(data[: data.index(b"<title>Skin")]))
    with pytest.raises(InputError, match="ends early"):
        _clean(tmp_path, path)
    corpus = _clean(tmp_path, path, on_damage="keep")
    assert corpus.metrics["pages"] == 3
    assert corpus.metrics["damage"][0].startswith("cut.xml.bz2: after 3 whole pages")


def test_a_corpus_without_articles_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(ProofError, match="No article was left"):
        _clean(tmp_path, DATA / "english.xml", min_words=1000)


def test_counts_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    corpus = _clean(tmp_path, DATA / "english.xml")
    check(corpus.data, {})
    (tmp_path / "report.json").write_text(json.dumps({**_report(corpus), "pages": 8}))
    with pytest.raises(ProofError, match="do not add up"):
        check(tmp_path, {})


def test_repair_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.xml"
    text = (DATA / "english.xml").read_text().replace("stones that", "“stones” thatâ€™s what")
    path.write_text(text)
    assert '"stones" that\'s what' in _documents(_clean(tmp_path, path))[0]["text"]
    kept = _documents(_clean(tmp_path, path, repair=False))[0]["text"]
    assert "“stones” thatâ€™s what" in kept


def test_reading_the_configs_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'prefect', 'lxml', 'nltk', 'ftfy', 'numpy', 'transformers'}"
    code = f"import sys, tasks.clean.task, tasks.ingest.task; print({heavy} & set(sys.modules))"
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


def test_a_file_that_changed_after_the_plan_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mine.txt"
    opened = Store.open_work

    def late(store: Store, address: Address) -> Work:
        if address.stage == "clean":
            table.write_text(table.read_text().replace("1", "2"))
        return opened(store, address)

    monkeypatch.setattr(Store, "open_work", late)
    table.write_text("a wall => nothing to change\n")
    assert _documents(_clean(tmp_path, DATA / "english.xml", template_table=str(table)))
    table.write_text("a wall => {1}\n")
    with pytest.raises(InputError, match=r"changed after the run was planned.*mine\.txt"):
        _clean(tmp_path, DATA / "english.xml", template_table=str(table))
