"""Sources elsewhere: fetched once, resumed by ranges, and never another file than was listed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from megatron_bridge.sources import filesystem
from tasks.core.errors import ConfigError, InputError, RetryableError
from tasks.core.store import Store
from tasks.ingest import fetching
from tasks.ingest.task import IngestConfig, ingest

ROOT = Path(__file__).parents[2]
DATA = b"".join(b'{"text": "row %d"}\n' % number for number in range(20_000))
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_BLOCK", 1 << 16)


def _build(tmp_path: Path, *source: str, **config: Any) -> Any:
    given = source[0] if len(source) == 1 else source
    return ingest.build(Store(tmp_path / "store"), IngestConfig(source=given, **config))


def test_one_file_of_a_web_server(host: Any, tmp_path: Path) -> None:
    host.files["/a/rows.jsonl"] = DATA
    url = f"{host.url}/a/rows.jsonl?signature=geheim".replace("//", "//anna:${PASSWORD}@")
    outcome = _build(tmp_path, url)
    artifact = outcome.artifact
    assert [path.name for path in artifact.files] == ["rows.jsonl"]
    assert artifact.files[0].read_bytes() == DATA
    assert artifact.metrics == {
        "sources": [f"{host.url}/a/rows.jsonl?***".replace("//", "//***@")],
        "bytes": len(DATA), "compression": "none", "fetched": {"rows.jsonl": DIGEST},
    }  # fmt: skip
    assert artifact.record.identity["identity"] == {
        "source": {
            "name": "rows.jsonl",
            "bytes": len(DATA),
            "state": f'"{hashlib.md5(DATA).hexdigest()}"',
        }
    }
    assert "geheim" not in (artifact.path / "artifact.json").read_text()
    # A look a listing, three of them, and the rest is content.
    assert host.sent["/a/rows.jsonl"] <= len(DATA) + 32
    assert _build(tmp_path, url.replace("geheim", "andere")).state == "Reused"


def test_a_digest_makes_it_the_same_as_a_file_here(host: Any, tmp_path: Path) -> None:
    host.files["/rows.jsonl"], host.tells_etag = DATA, False
    with pytest.raises(ConfigError, match=r"ingest.sha256=…"):
        _build(tmp_path, f"{host.url}/rows.jsonl")
    with pytest.raises(InputError, match="not the file that was asked for"):
        _build(tmp_path, f"{host.url}/rows.jsonl", sha256="0" * 64)
    # What was fetched then is not taken for this one, though nobody tells them apart.
    host.files["/rows.jsonl"] = DATA.replace(b"7", b"8")
    with pytest.raises(InputError, match="not the file that was asked for"):
        _build(tmp_path, f"{host.url}/rows.jsonl", sha256=DIGEST)
    host.files["/rows.jsonl"] = DATA
    there = _build(tmp_path, f"{host.url}/rows.jsonl", sha256=DIGEST)
    (tmp_path / "rows.jsonl").write_bytes(DATA)
    here = _build(tmp_path, str(tmp_path / "rows.jsonl"))
    assert (there.state, here.state) == ("Built", "Reused")


@pytest.mark.parametrize("ranges", [True, False])
def test_a_connection_that_breaks(host: Any, tmp_path: Path, ranges: bool) -> None:
    host.files["/rows.jsonl"], host.gives_ranges = DATA, ranges
    host.drops_after, host.drops = 40_000, 2
    assert _build(tmp_path, f"{host.url}/rows.jsonl").artifact.files[0].read_bytes() == DATA
    assert host.drops == 0
    again = 0 if ranges else 2 * 40_000
    assert host.sent["/rows.jsonl"] <= len(DATA) * (1 if ranges else 4) + again + 32


def test_what_had_arrived_is_not_fetched_again(host: Any, tmp_path: Path) -> None:
    host.files |= {"/a.jsonl": DATA, "/b.jsonl": DATA}
    urls = [f"{host.url}/a.jsonl", f"{host.url}/b.jsonl"]
    host.drops_after, host.drops = 150_000, 10**9
    fetched = fetching._by_ranges

    def dying(address: Any, size: int, part: Path, progress: Any) -> None:
        def told(done: int) -> None:
            if "b.jsonl" in address.url and done > 200_000:
                raise KeyboardInterrupt
            progress(done)

        fetched(address, size, part, told)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching, "_by_ranges", dying)
        with pytest.raises(KeyboardInterrupt):
            _build(tmp_path, *urls)
    artifact = _build(tmp_path, *urls).artifact
    assert [path.read_bytes() for path in artifact.files] == [DATA, DATA]
    assert [file.path for file in artifact.record.files] == ["00-a/a.jsonl", "01-b/b.jsonl"]
    assert host.sent["/a.jsonl"] <= len(DATA) + 64
    assert host.sent["/b.jsonl"] <= len(DATA) + (1 << 16) + 64
    assert not list(artifact.path.glob("work*"))


def test_a_killed_process_is_gone_on_with(host: Any, tmp_path: Path) -> None:
    host.files["/rows.jsonl"], host.pause = DATA, 0.05
    code = (
        "import sys\nfrom tasks.core.store import Store\nfrom tasks.ingest import fetching, task\n"
        "fetching._BLOCK = 1 << 16\n"
        "task.ingest.build(Store(sys.argv[1]), task.IngestConfig(source=sys.argv[2]))"
    )
    url = f"{host.url}/rows.jsonl"
    command = [sys.executable, "-c", code, str(tmp_path / "store"), url]
    child = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)

    def parts() -> list[Path]:
        return list(tmp_path.glob("store/ingest/*/*/work/scratch/*.part"))

    while child.poll() is None and not any(part.stat().st_size >= 1 << 17 for part in parts()):
        time.sleep(0.01)
    child.kill()
    assert child.wait() == -9
    (part,) = parts()
    had, sent, host.pause = part.stat().st_size, host.sent["/rows.jsonl"], 0
    (file,) = _build(tmp_path, url).artifact.files
    assert file.read_bytes() == DATA
    assert host.sent["/rows.jsonl"] - sent <= len(DATA) - had + (1 << 16)


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("after", [2, 4])
def test_a_file_that_changes_is_an_error(
    host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: bool, after: int
) -> None:
    host.files["/rows.jsonl"], host.gives_ranges = DATA, ranges
    asked = list.append

    class Changing(list):  # type: ignore[type-arg]
        def append(self, one: object) -> None:
            asked(self, one)
            if len(self) == after:
                host.files["/rows.jsonl"] = DATA.replace(b"7", b"8")

    host.ranges = Changing()
    with pytest.raises(InputError, match="changed"):
        _build(tmp_path, f"{host.url}/rows.jsonl")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nothing", "no such file"),
        ("/data/*.jsonl", "does not list its files"),
        ("/data/", "does not list its files"),
        ("/empty", "holds no file"),
        ("/program", "a program"),
        ("/x.zip", "unpack it"),
    ],
)
def test_what_is_not_to_be_had_is_told_without_secrets(
    host: Any, tmp_path: Path, path: str, message: str
) -> None:
    host.files |= {"/empty": b"", "/program": b"\x7fELF and so on", "/x.zip": b"PK"}
    url = f"{host.url}{path}?sig=geheim".replace("//", "//anna:${PASSWORD}@", 1)
    with pytest.raises(InputError, match=message) as error:
        _build(tmp_path, url)
    assert "geheim" not in str(error.value)


def test_nobody_there_may_be_tried_again(host: Any, tmp_path: Path) -> None:
    with pytest.raises(RetryableError, match="failed") as error:
        _build(tmp_path, "http://anna:${PASSWORD}@127.0.0.1:9/rows.jsonl")
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "a/b"], "name of a folder"),
        (["a//b", "c"], "name cannot be used"),
        (["a\0b", "c"], "name cannot be used"),
        (["../a", ".b"], "2 hidden"),
    ],
)
def test_names_that_no_disk_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], message: str
) -> None:
    monkeypatch.setattr(filesystem, "found", lambda *_: dict.fromkeys(names, (3, "etag")))
    with pytest.raises(InputError, match=message):
        _build(tmp_path, "memory://x")


def test_any_filesystem_has_folders_and_patterns(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    for name in ("a/1.jsonl", "a/b/2.jsonl", "a/.hidden", "c.txt"):
        fs.pipe(f"/ingested/{name}", name.encode())
    fs.touch("/ingested/a/empty")
    artifact = _build(tmp_path, "memory://ingested").artifact
    assert [file.path for file in artifact.record.files] == [
        "00-ingested/a/1.jsonl", "00-ingested/a/b/2.jsonl", "00-ingested/c.txt"
    ]  # fmt: skip
    assert artifact.metrics["skipped"] == {"hidden": 1, "empty": 1}
    pattern = _build(tmp_path, "memory://ingested/**/*.jsonl").artifact
    assert [path.read_text() for path in pattern.files] == ["a/1.jsonl", "a/b/2.jsonl"]
    (one,) = _build(tmp_path, "memory://ingested/*/*.jsonl").artifact.files
    assert (one.name, one.read_text()) == ("1.jsonl", "a/1.jsonl")
    with pytest.raises(InputError, match="No file matches"):
        _build(tmp_path, "memory://ingested/*.parquet")
    with pytest.raises(InputError, match="no such file"):
        _build(tmp_path, "memory://elsewhere/x")


def test_oss(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ossfs", reason="ossfs is not installed (the extra `oss`)")
    bucket.files |= {
        "/bucket/wiki/": b"", "/bucket/wiki/a.jsonl": DATA, "/bucket/wiki/sub/b#1.jsonl": b"b",
        "/bucket/wiki2/c.jsonl": b"c",
    }  # fmt: skip
    artifact = _build(tmp_path, "oss://bucket/wiki").artifact
    assert [path.read_bytes() for path in artifact.files] == [DATA, b"b"]
    assert artifact.record.files[1].path == "00-wiki/sub/b#1.jsonl"
    states = [file["state"] for file in artifact.record.identity["identity"]["source"]]
    assert states == [hashlib.md5(data).hexdigest().upper() for data in (DATA, b"b")]
    (one,) = _build(tmp_path, "oss://bucket/wiki/*.jsonl").artifact.files
    assert one.read_bytes() == DATA
    (two,) = _build(tmp_path, "oss://bucket/wiki2/c.jsonl").artifact.files
    assert two.read_bytes() == b"c"
    monkeypatch.setenv("OSS_ACCESS_KEY_ID", "another")
    with pytest.raises(InputError, match=r"not given.*AccessDenied") as error:
        _build(tmp_path, "oss://bucket/wiki")
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize(
    ("package", "url", "fix"),
    [("oss2", "oss://bucket/x", r"pip install 'megaline\[oss\]'"), ("s3fs", "s3://b/x", "s3fs")],
)
def test_a_package_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, url: str, fix: str
) -> None:
    for name in ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET", "OSS_ENDPOINT"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=fix):
        _build(tmp_path, url)


def test_a_plan_of_files_here_loads_no_client(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    recipe = ROOT / "deploy" / "recipes" / "toy.yaml"
    words = ["plan", str(recipe), f"ingest.source={tmp_path}/*.txt", "--root", f"{tmp_path}/store"]
    code = (
        f"import atexit, sys\nfrom flows.cli import main\nsys.argv[1:] = {words!r}\n"
        "heavy = {'torch', 'prefect', 'fsspec', 'aiohttp', 'pyarrow'}\n"
        "atexit.register(lambda: print('loaded', sorted(heavy & set(sys.modules))))\nmain()"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "ingest       to build" in found.stdout
    assert found.stdout.splitlines()[-1] == "loaded []"
