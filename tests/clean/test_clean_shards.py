"""Work shards: sealed one by one, taken over after a kill, the same on a cluster."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import pytest

from tasks.clean import documents, shards
from tasks.clean.corpus import Run, write_parts
from tasks.clean.counts import Counts
from tasks.clean.documents import clean_shard
from tasks.clean.dump import Dump
from tasks.clean.pages import Options
from tasks.clean.shards import Cutter, Shard
from tasks.core.errors import ConfigError
from tasks.core.executor import Executor

ROOT = Path(__file__).parents[2]
HEAD = (
    '<mediawiki xml:lang="en"><siteinfo><base>https://ex.example.org/wiki/Main</base>'
    '<namespaces><namespace key="10">Template</namespace></namespaces></siteinfo>\n'
)
PROSE = (
    "The {0} was built by the people of the town, and it has stood there for a long time. "
    "Most of the visitors who come to see the {0} walk along the river in the evening."
)
NEAR = {"duplicates": "near", "drop_repeated_paragraphs": True, "min_words": 20}
Progress = Callable[..., None]


def _page(number: int, title: str, text: str) -> str:
    namespace = 10 if title.startswith("Template:") else 0
    return (
        f"<page><title>{title}</title><ns>{namespace}</ns><id>{number}</id><revision><id>1</id>"
        f"<model>wikitext</model><text>{escape(text)}</text></revision></page>\n"
    )


def _dump(path: Path, pages: Sequence[tuple[str, str]]) -> None:
    body = "".join(_page(number, *page) for number, page in enumerate(pages, 1))
    path.write_text(f"{HEAD}{body}</mediawiki>\n", encoding="utf-8")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two dumps, of which the second repeats some of the first, in some fifteen shards."""
    monkeypatch.setattr(shards, "_SMALLEST", 2_000)
    folder = tmp_path / "corpus"
    folder.mkdir()
    walls = [(f"Wall {n}", PROSE.format(f"wall of stone {n * 977}")) for n in range(40)]
    hill = ("Template:Hill", "It has {{#expr: {{{1}}} * 3}} trees and no house at all.")
    hills = [(f"Hill {n}", PROSE.format(f"hill no {n}") + f" {{{{hill|{n}}}}}") for n in range(20)]
    _dump(folder / "a.xml", [*walls, hill, *hills])
    _dump(folder / "b.xml", [*walls[5:9], *hills])
    return folder


def _write(
    corpus: Path, folder: Path, workers: int = 1, executor: Executor | None = None,
    progress: Progress | None = None, **options: Any,
) -> Counts:  # fmt: skip
    for name in ("out", "scratch"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    run = Run(
        Options(**options), "a corpus", folder / "scratch", "error", 1 << 14, workers,
        executor or Executor(), progress or (lambda *args, **more: None),
    )  # fmt: skip
    return write_parts(corpus, sorted(os.listdir(corpus)), folder / "out", run)


def _digests(folder: Path) -> dict[str, str]:
    out = sorted((folder / "out").iterdir())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out}


def _sealed(folder: Path) -> dict[str, int]:
    """Each sealed shard, and which folder it is: another, when it has been done again."""
    found = folder.glob("scratch/*/sealed/[0-9]*")
    return {path.name: path.stat().st_ino for path in found}


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each shard is cleaned in this process."""
    times: Counter[int] = Counter()
    clean = documents._clean

    def counted(options: Options, shard: Shard, folder: Path) -> None:
        times[shard.number] += 1
        clean(options, shard, folder)

    monkeypatch.setattr(documents, "_clean", counted)
    return times


@pytest.mark.parametrize("options", [{}, {"templates": "table"}, NEAR])
def test_a_run_that_failed_goes_on_with_the_shards_that_are_not_sealed(
    corpus: Path, tmp_path: Path, done: Counter[int], monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:  # fmt: skip
    whole = _write(corpus, tmp_path / "whole", **options)
    assert len(done) > 10
    assert set(done.values()) == {1}
    done.clear()

    def stop(read: float, total: float, unit: str, note: str) -> None:
        if len(done) == 6 and "articles" in note:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _write(corpus, tmp_path / "run", progress=stop, **options)
    before = _sealed(tmp_path / "run")
    assert len(before) == len(done) == 6
    if options.get("templates") != "table":
        monkeypatch.setattr(Dump, "raw", lambda self: pytest.fail("read again"))
    said: list[str] = []
    found = _write(
        corpus, tmp_path / "run", progress=lambda *args, **more: said.append(more["note"]),
        **options,
    )  # fmt: skip
    assert set(done.values()) == {1}
    assert _sealed(tmp_path / "run").items() >= before.items()
    assert said[-1].endswith(" articles, shards taken over from an earlier run: 6")
    assert _digests(tmp_path / "run") == _digests(tmp_path / "whole")
    assert found.as_json() == whole.as_json()
    # What waited to be cleaned is gone.
    assert list((tmp_path / "run").glob("scratch/*/waiting/*")) == []


def test_a_sealed_shard_that_a_machine_has_lost_a_piece_of_is_done_again(
    corpus: Path, tmp_path: Path, done: Counter[int]
) -> None:
    _write(corpus, tmp_path / "whole")
    _write(corpus, tmp_path / "run")
    done.clear()
    for number, name in ((3, "documents.jsonl"), (5, "counts.json")):
        (path,) = (tmp_path / "run").glob(f"scratch/*/sealed/{number:05}/{name}")
        os.truncate(path, 9)
    _write(corpus, tmp_path / "run")
    assert done == {3: 1, 5: 1}
    assert _digests(tmp_path / "run") == _digests(tmp_path / "whole")


def test_other_options_take_nothing_over(corpus: Path, tmp_path: Path, done: Counter[int]) -> None:
    _write(corpus, tmp_path, min_words=20)
    number, (old,) = len(done), (tmp_path / "scratch").iterdir()
    for part in (tmp_path / "out").iterdir():
        part.unlink()
    _write(corpus, tmp_path, min_words=21)
    assert set(done.values()) == {2}
    assert len(_sealed(tmp_path)) == number
    assert not old.exists()


def test_another_version_takes_nothing_over(
    corpus: Path, tmp_path: Path, done: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for version, times in (("1", 1), ("1", 1), ("2", 2)):
        packages = {"packages": {"megaline": version}}
        monkeypatch.setattr("tasks.clean.corpus.provenance", lambda found=packages: found)
        _write(corpus, tmp_path)
        assert set(done.values()) == {times}


def test_workers_read_what_files_held_at_the_start(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _dump(corpus / "c.xml", [("River", PROSE.format("river") + " At {{height|5}}.")])
    table, quiz = tmp_path / "mine.txt", tmp_path / "quiz.txt"

    def change(*args: Any, **more: Any) -> None:
        table.write_text("height => {1} metres\n")
        quiz.unlink(missing_ok=True)

    table.write_text("height => {1} feet\n")
    quiz.write_text(PROSE.format("wall of stone 977"))
    monkeypatch.chdir(tmp_path)
    named = {"template_table": "mine.txt", "evaluation_sets": ["quiz.txt"]}
    counts = _write(corpus, tmp_path, progress=change, contaminated="keep", **named)
    assert "At 5 feet." in max((tmp_path / "out").iterdir()).read_text()
    assert counts.hits["quiz"] == counts.articles


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: os.truncate(path, 0)])
def test_a_corpus_is_cut_again_where_a_waiting_shard_is_lost(
    corpus: Path, tmp_path: Path, done: Counter[int], lose: Callable[[Path], None]
) -> None:
    def stop(read: float, total: float, unit: str, note: str) -> None:
        if "articles" in note:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _write(corpus, tmp_path / "run", progress=stop)
    lose(max((tmp_path / "run").glob("scratch/*/waiting/*")))
    _write(corpus, tmp_path / "run")
    assert set(done.values()) == {1}
    _write(corpus, tmp_path / "whole")
    assert _digests(tmp_path / "run") == _digests(tmp_path / "whole")


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
import test_clean_shards as tests
from tasks.clean import shards

if __name__ == "__main__":
    shards._SMALLEST = 2_000
    folder = Path(sys.argv[2])

    def progress(read, total, unit, note):
        if "articles" in note and len(tests._sealed(folder)) > 4:
            os.kill(os.getpid(), signal.SIGKILL)

    tests._write(folder / "corpus", folder, workers=2, progress=progress, **tests.NEAR)
"""


def test_a_run_killed_in_the_middle_does_no_sealed_shard_again(
    corpus: Path, tmp_path: Path, done: Counter[int]
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(Path(__file__).parent), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    before = _sealed(tmp_path)
    assert len(before) > 4
    _write(corpus, tmp_path, **NEAR)
    assert len(done) > 0
    assert not {f"{number:05}" for number in done} & set(before)
    assert _sealed(tmp_path).items() >= before.items()
    _write(corpus, tmp_path / "whole", **NEAR)
    assert _digests(tmp_path) == _digests(tmp_path / "whole")


def test_workers_threads_and_a_cluster_that_loses_one_make_the_same_bytes(
    corpus: Path, tmp_path: Path, dask_cluster: Callable[[int], Any]
) -> None:
    counts = [_write(corpus, tmp_path / str(n), workers=n, **NEAR).as_json() for n in (1, 2, 4)]
    cluster = dask_cluster(1)
    cluster.join(threads=3)
    before: dict[str, int] = {}

    def kill(read: float, total: float, unit: str, note: str) -> None:
        if "articles" in note and not before:
            before.update(_sealed(tmp_path / "dask"))
            cluster.workers[0].kill()

    there = Executor(kind="dask", address=cluster.address)
    found = _write(corpus, tmp_path / "dask", executor=there, progress=kill, **NEAR)
    assert cluster.workers[0].wait() == -signal.SIGKILL
    sealed = _sealed(tmp_path / "dask")
    assert sealed.items() >= before.items()
    assert len(sealed) > len(before) > 0
    assert [found.as_json()] * 3 == counts
    for workers in ("1", "2", "4"):
        assert _digests(tmp_path / workers) == _digests(tmp_path / "dask")


def test_a_worker_that_does_not_see_the_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not see the folder"):
        clean_shard(Options(), Shard(0, tmp_path / "elsewhere", {}, 0))


def test_two_workers_with_one_shard_seal_it_once(corpus: Path, tmp_path: Path) -> None:
    cutter = Cutter(tmp_path, Options(), "error", 1)
    files = [(path.name, path) for path in sorted(corpus.iterdir())]
    first = next(cutter.shards(files, lambda read: None))
    with first.sealing() as late:
        (late / "documents.json").write_text('{"0": 99}')
        (late / "counts.json").write_text("{}")
        assert clean_shard(Options(), first) < 99
    assert clean_shard(Options(), first) < 99
    assert os.listdir(tmp_path / "sealed") == ["00000"]
    every = list(cutter.shards(files, lambda read: None))
    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(partial(clean_shard, Options()), every * 2)) == 2 * 84


def test_a_worker_that_outlives_a_run_reads_its_files_again(tmp_path: Path) -> None:
    _dump(tmp_path / "dump.xml", [("Wall", PROSE.format("wall") + " At {{height|5}}.")])
    table = tmp_path / "mine.txt"
    options = Options(templates="table", template_table=str(table))
    for unit in ("feet", "metres"):
        table.write_text(f"height => {{1}} {unit}\n")
        cutter = Cutter(tmp_path / unit, options, "error", 1)
        (shard,) = cutter.shards([("dump.xml", tmp_path / "dump.xml")], lambda read: None)
        clean_shard(options, shard)
        assert f"At 5 {unit}." in (shard.sealed / "documents.jsonl").read_text()


def test_small_corpora_have_work_for_several_and_large_ones_shards_of_4_mib(
    tmp_path: Path,
) -> None:
    page = _page(1, "Wall", PROSE * 100)
    path = tmp_path / "dump.xml"
    sizes = []
    for count in (120, 2_500):
        path.write_text(f"{HEAD}{page * count}</mediawiki>")
        cutter = Cutter(tmp_path / str(count), Options(templates="table"), "error", 1)
        cut = cutter.shards([("dump.xml", path)], lambda read: None)
        sizes.append([shard.waiting.stat().st_size for shard in cut])
    assert len(sizes[0]) >= 8
    assert sizes[1][: len(sizes[0]) - 1] == sizes[0][:-1]
    assert 4 << 20 <= max(sizes[1]) < 5 << 20


def test_files_of_all_kinds_make_one_corpus(corpus: Path, tmp_path: Path) -> None:
    lines = [
        {"text": PROSE.format("wall of stone 977"), "title": "A wall again"},
        {"text": PROSE.format("bridge over the river"), "id": 7, "language": "simple"},
        {"text": " "},
        {"words": "none"},
    ]
    rows = "".join(f"{json.dumps(line)}\n" for line in lines)
    (corpus / "c.jsonl").write_text(rows)
    (corpus / "d.txt").write_text(PROSE.format("harbour") + "\n\nMore.\n")
    found = _write(corpus, tmp_path, workers=2, duplicates="exact", min_words=20)
    parts = sorted((tmp_path / "out").iterdir())
    records = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert [record["source"] for record in records[-2:]] == ["c.jsonl", "d.txt"]
    bridge, harbour = records[-2:]
    assert (bridge["id"], bridge["language"]) == ("7", "simple")
    assert rows[slice(*bridge["range"])] == json.dumps(lines[1])
    assert (harbour["id"], harbour["language"], harbour["title"]) == ("d.txt:0", "en", "d")
    assert harbour["text"] == PROSE.format("harbour") + "\n\nMore."
    assert found.pages == 61 + 24 + 4 + 1 == sum(found.whereabouts().values())
    assert found.without_text == 1
    bad = rows.index('{"words"')
    assert found.set_aside.pages == [
        {"id": f"c.jsonl:{bad}", "title": "", "error": "no field `text` among ['words']"}
    ]
    # Walls of b.xml repeat a.xml, and a row of c.jsonl does. Its hills lack their template.
    assert found.duplicates == {"duplicate": 4 + 1}
    assert found.as_json()["duplicates_across_sources"] == 4 + 1
    _dump(corpus / "a.xml", [("Wall", PROSE.format("wall"))] * 3)
    (corpus / "b.xml").unlink()
    inside = _write(corpus, tmp_path / "inside", duplicates="exact", min_words=20)
    assert (inside.duplicates["duplicate"], inside.duplicates_across) == (2, 0)


def test_counts_survive_as_json(corpus: Path, tmp_path: Path) -> None:
    found = _write(corpus, tmp_path, mask=["mail"], **NEAR)
    found.set_aside.note({"id": "1", "title": "\ud800", "error": "half a surrogate"})
    found.damage.append("a.xml: after 3 whole pages")
    found.hits["quiz"] += 1
    again = Counts.restored(json.loads(json.dumps(found.state())))
    assert again == found
    assert again.as_json() == found.as_json()
    found.add(again)
    twice = Counts.restored(json.loads(json.dumps(again.state())))
    twice.add(again)
    assert twice == found
