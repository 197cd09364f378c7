"""What a corpus of any size may hold in memory, and what a page that fails may count."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.clean import corpus, counts, documents, library, samples, shards
from tasks.clean.corpus import Run, write_parts
from tasks.clean.counts import Counts
from tasks.clean.library import Library
from tasks.clean.origins import SourceFile
from tasks.clean.pages import Cleaner, Options
from tasks.clean.wiki import Deadline, PageTimeout
from tasks.core.errors import InputError, RetryableError
from tasks.core.executor import Executor

ENGLISH = Path(__file__).parents[1] / "data" / "wiki" / "english.xml"


def _run(tmp_path: Path, source: Path, **options: Any) -> tuple[Counts, list[str]]:
    folders = [tmp_path / name for name in ("out", "scratch")]
    for folder in folders:
        folder.mkdir(parents=True)
    run = Run(
        Options(**options), "a corpus", folders[1], "error", 1 << 20, 1, Executor(),
        lambda *args, **more: None,
    )  # fmt: skip
    found = write_parts(source.parent, [source.name], folders[0], run)
    lines = [line for path in folders[0].iterdir() for line in path.read_text().splitlines()]
    return found, [json.loads(line)["title"] for line in lines]


def test_pages_set_aside_are_counted_and_the_first_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(samples, "_PAGES_NAMED", 2)
    monkeypatch.setattr(corpus, "_PAGES_TOLD", 2)
    broken = "".join(f"<page><title>B{n}</title><text></txt></page>" for n in range(5))
    source = tmp_path / "dump.xml"
    source.write_text(ENGLISH.read_text().replace("</mediawiki>", f"{broken}</mediawiki>"))
    monkeypatch.setattr(shards, "_SMALLEST", 1)
    found, _ = _run(tmp_path / "run", source)
    assert found.whereabouts()["set_aside"] == 5
    assert sum(found.whereabouts().values()) == found.pages
    assert [page["title"] for page in found.as_json()["set_aside"]] == ["B0", "B1"]
    assert "and 3 more" in caplog.text


def test_names_of_templates_are_bounded_and_all_calls_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counts, "_MOST_TEMPLATES", 10)
    total = Counts()
    for number in range(30):
        batch = Counts()
        batch.templates.update({"common": 2, f"rare {number}": 1})
        total.add(batch)
    told = total.as_json()["templates"]
    assert told["dropped"] == 90
    assert told["names"] <= 10
    assert (told["most"][0]["name"], told["most"][0]["times"]) == ("common", 60)


def test_templates_are_remembered_up_to_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_LARGEST_REMEMBERED", 1_000)
    found = Library.write(tmp_path / "t", ((f"T{n}", f"{n}" * 400) for n in range(10)))
    for _ in range(2):
        assert all(found[f"T{n}"] == f"{n}" * 400 for n in range(10))
    assert sum(len(text or "") for text in found._remembered.values()) <= 1_400


def test_a_page_that_cannot_be_written_is_no_article(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = documents.encoded

    def fragile(record: dict[str, Any]) -> bytes:
        return whole({**record, "text": "\ud800"} if record["id"] == "1" else record)

    monkeypatch.setattr(documents, "encoded", fragile)
    found, titles = _run(tmp_path, ENGLISH)
    assert (found.articles, titles, found.set_aside.count) == (1, ["Tide: rise & fall"], 1)
    assert sum(found.whereabouts().values()) == found.pages


def test_a_machine_without_memory_is_no_bad_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy(*args: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Cleaner, "document", greedy)
    with pytest.raises(RetryableError, match="Out of memory"):
        _run(tmp_path, ENGLISH)


def test_waiting_does_not_pass_a_page_s_limit() -> None:
    deadline = Deadline(0.02)
    time.sleep(0.05)
    deadline.check()
    until = time.thread_time() + 0.03
    while time.thread_time() < until:
        pass
    with pytest.raises(PageTimeout):
        deadline.check()


def test_damage_is_told_before_the_first_page_is_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "dump.xml"
    source.write_bytes(ENGLISH.read_bytes()[:-200])
    monkeypatch.setattr(Cleaner, "document", lambda *args: pytest.fail("cleaned already"))
    with pytest.raises(InputError, match="ends early"):
        _run(tmp_path / "run", source)
    read = SourceFile(source, "dump", Options(), tmp_path / "t", "keep", lambda done: None)
    assert len(list(read.raw())) == 6
    assert read.origin().site.language == "en"
