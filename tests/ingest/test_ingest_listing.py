"""Which files a source is: folders, patterns and lists of them, on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.core.errors import ConfigError, InputError
from tasks.core.store import Store
from tasks.ingest.listing import listed, name_of
from tasks.ingest.task import IngestConfig, ingest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows in folders, beside what is passed over."""
    root = tmp_path / "a corpus"
    for name in ("b.jsonl", "a-2.jsonl", "a/2.jsonl", "a/x/1.jsonl.gz", "notes.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / ".git").mkdir()
    (root / ".git" / "c.jsonl").write_text("hidden")
    (root / "a" / ".d.jsonl").write_text("hidden")
    (root / "a" / "empty.jsonl").touch()
    (tmp_path / "secret.jsonl").write_text("secret")
    (root / "out.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (root / "up").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(root / "pipe.jsonl")
    return root


def _names(*given: object) -> list[str]:
    return [entry.name for entry in listed([str(one) for one in given]).files]


def test_a_folder_is_all_files_below_it_in_order(folder: Path) -> None:
    listing = listed([str(folder)])
    assert [entry.name for entry in listing.files] == [
        "00-a-corpus/a/2.jsonl", "00-a-corpus/a/x/1.jsonl.gz", "00-a-corpus/a-2.jsonl",
        "00-a-corpus/b.jsonl", "00-a-corpus/notes.txt",
    ]  # fmt: skip
    assert listing.skipped == {"hidden": 2, "links": 2, "empty": 1, "special": 1}


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.jsonl", ["a-2.jsonl", "b.jsonl"]),
        ("*/*.jsonl", ["2.jsonl"]),
        ("**/*.jsonl", ["a/2.jsonl", "a-2.jsonl", "b.jsonl"]),
        ("**/*.gz", ["1.jsonl.gz"]),
        ("a/**", ["2.jsonl", "x/1.jsonl.gz"]),
        ("[ab].jsonl", ["b.jsonl"]),
        ("?.jsonl", ["b.jsonl"]),
        ("../*.jsonl", ["secret.jsonl"]),
    ],
)
def test_a_pattern(folder: Path, pattern: str, found: list[str]) -> None:
    names = [name.partition("/")[2] or name for name in _names(folder / pattern)]
    assert names == found


def test_a_file_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "x[1].txt").write_text("x")
    assert _names(tmp_path / "x[1].txt") == ["x[1].txt"]


def test_the_order_of_the_records_is_the_order_of_the_sources(folder: Path, tmp_path: Path) -> None:
    given = [folder / "notes.txt", folder / "a", folder / "*.jsonl"]
    names = _names(*given)
    assert names == [
        "00-notes/notes.txt", "01-a/2.jsonl", "01-a/x/1.jsonl.gz",
        "02-a-corpus/a-2.jsonl", "02-a-corpus/b.jsonl",
    ]  # fmt: skip
    config = IngestConfig(source=tuple(map(str, given)))
    artifact = ingest.build(Store(tmp_path / "store"), config).artifact
    assert [file.path for file in artifact.record.files] == names
    assert artifact.label == "notes-and-2-more"
    assert artifact.metrics == {
        "sources": [str(source) for source in given],
        "bytes": sum(path.stat().st_size for path in artifact.files),
        "files": 5,
        "compression": {"none": 5},
        "skipped": {"hidden": 1, "empty": 1, "links": 1, "special": 1},
    }
    assert {path.name: path.read_text() for path in artifact.files}["2.jsonl"] == "a/2.jsonl"


def test_order_holds_for_many_sources(tmp_path: Path) -> None:
    for number in range(101):
        (tmp_path / f"{number}.txt").write_text("x")
    names = _names(*(tmp_path / f"{number}.txt" for number in range(101)))
    assert names == sorted(names)
    assert (names[2], names[100]) == ("002-2/2.txt", "100-100/100.txt")


def test_what_was_sealed_is_found_wherever_it_lies_now(folder: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    first = ingest.build(store, IngestConfig(source=str(folder / "**/*.jsonl")))
    (tmp_path / "elsewhere").mkdir()
    folder.rename(tmp_path / "elsewhere" / "a corpus")
    config = IngestConfig(source=f"file://{tmp_path}/elsewhere/a%20corpus/**/*.jsonl")
    assert ingest.build(store, config).artifact.path == first.artifact.path
    (tmp_path / "elsewhere" / "a corpus" / "b.jsonl").write_text("B.jsonl")
    again = ingest.build(store, config)
    assert (again.state, again.artifact.label) == ("Built", first.artifact.label)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{}/*.parquet", r"No file matches the source.*\*\.parquet.*Got: none"),
        ("{}/empty", r"holds no file.*1 hidden, empty, or links were passed over"),
        ("{}/none/*.jsonl", "does not exist"),
        ("{}/nothing", "does not exist"),
        ("{}/x.tar.gz", "an archive.*unpack it, and name the folder"),
        ("{}/x.ZIP", "an archive.*unpack it"),
        ("{}/x.csv.gz", "a table in CSV.*convert it to Parquet"),
        ("{}/enwiki-pages-meta-history1.xml.bz2", "history of its pages"),
        ("{}/renamed", "zip archive.*unpack it"),
        ("{}/program", "a program"),
        ("{}/hidden-tar", "tar archive"),
        ("{}/bad", r"name cannot be used.*udcff"),
        ("gopher://user:${{PASSWORD}}@host/x?sig=geheim", "no reader.*gopher"),
        ("simplecache::https://host/x", "chain of URLs"),
        ("package://no_such_package_here/*", "pip install no_such_package_here"),
        ("oss://bucket/*", "OSS_ACCESS_KEY_ID"),
    ],
)
def test_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    monkeypatch.delenv("OSS_ACCESS_KEY_ID", raising=False)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "x").touch()
    (tmp_path / "bad").mkdir()
    (tmp_path / "renamed").write_bytes(b"PK\x03\x04")
    (tmp_path / "program").write_bytes(b"\x7fELF\x02")
    (tmp_path / "hidden-tar").write_bytes(b"x".ljust(257, b"\0") + b"ustar")
    for name in (
        "x.tar.gz",
        "x.ZIP",
        "x.csv.gz",
        "enwiki-pages-meta-history1.xml.bz2",
        "bad/x\udcff",
    ):
        (tmp_path / name).write_text("x")
    config = IngestConfig(source=source.format(tmp_path))
    with pytest.raises((InputError, ConfigError), match=message) as error:
        ingest.build(Store(tmp_path / "store"), config)
    assert "geheim" not in str(error.value)


def test_the_same_file_twice_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"00-a-corpus/b.jsonl and 01-b/b.jsonl"):
        _names(folder, folder / ".." / "a corpus" / "b.jsonl")


def test_one_digest_cannot_be_that_of_several(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ingest.sha256"):
        ingest.build(Store(tmp_path), IngestConfig(source=str(folder), sha256="0" * 64))


@pytest.mark.parametrize("change", ["gone", "new", "longer", "other"])
def test_what_changes_between_plan_and_run_is_seen(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    opened = Store.open_work

    def changing(store: Store, address: object) -> object:
        if change == "gone":
            (folder / "b.jsonl").unlink()
        else:
            name = "c.jsonl" if change == "new" else "b.jsonl"
            (folder / name).write_text("longer than b" if change == "longer" else "B.jsonl")
        return opened(store, address)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "open_work", changing)
    with pytest.raises(InputError, match="changed after it was listed"):
        ingest.build(Store(tmp_path / "store"), IngestConfig(source=str(folder)))


def test_what_a_source_is_called() -> None:
    for source, name in {
        "/data/wiki/dump.xml.bz2": "dump",
        "data/**/*.jsonl.gz": "data",
        "package://gensim/test/x.bz2": "x",
        "https://user:${PASSWORD}@host/a/b%20c.jsonl?sig=geheim": "b-c",
        "oss://bucket/*.jsonl": "bucket",
        "oss://bucket/x/y*/z": "x",
        "s3://user:${PASSWORD}@bucket": "bucket",
        "../中文 语料/": "中文-语料",
        "*": "source",
    }.items():
        assert name_of(source) == name
