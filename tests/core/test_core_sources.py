"""URLs to files: what is found, copied and described, and what is refused."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from tasks.core.errors import InputError
from tasks.core.fingerprint import DigestCache
from tasks.core.sources import compression, describe, fetch, locate


def _silent(*args: object, **options: object) -> None:
    pass


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that fails when it is imported, with a secret beside it."""
    folder = tmp_path / "site" / "a_package_with_data"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "inner" / "x.txt").write_text("hello")
    (tmp_path / "site" / "secret.txt").write_text("secret")
    (folder / "inner" / "link").symlink_to(tmp_path / "site" / "secret.txt")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return folder


def test_a_file_is_found_by_path_and_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a file.txt"
    path.write_text("x")
    monkeypatch.chdir(tmp_path)
    assert locate(str(path)) == path
    assert locate("a file.txt") == path
    assert locate(f"file://{tmp_path}/a%20file.txt") == path
    assert locate(f"file://localhost{tmp_path}/a%20file.txt") == path


def test_a_file_in_a_package_is_found_without_importing_it(package: Path) -> None:
    assert locate("package://a_package_with_data/inner/x.txt") == package / "inner" / "x.txt"
    assert "a_package_with_data" not in sys.modules


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("package://a_package_with_data/../secret.txt", "leads out of its package"),
        ("package://a_package_with_data/inner/../../secret.txt", "leads out of its package"),
        ("package://a_package_with_data//etc/passwd", "leads out of its package"),
        ("package://a_package_with_data/inner/link", "leads out of its package"),
        ("package://a_package_with_data/inner", "a folder"),
        ("package://a_package_with_data/missing.txt", "does not exist"),
        ("package://a_package_with_data", "names a top-level package"),
        ("package://a_package_with_data.inner/x.txt", "names a top-level package"),
        ("package://../secret.txt", "names a top-level package"),
        ("package://no_such_package_here/x", "pip install no_such_package_here"),
        ("https://example.org/x", r"file://, package://"),
        ("oss://bucket/x", "unknown scheme"),
        ("file://elsewhere/x", "host 'elsewhere'"),
        ("/no/such/file", "does not exist"),
    ],
)
def test_others_are_refused(package: Path, url: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        locate(url)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(InputError, match="empty"):
        locate(str(tmp_path / "x"))


def test_a_copy_is_described_and_checked(tmp_path: Path) -> None:
    source, data = tmp_path / "x", bytes(range(256)) * 9000
    source.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    info = describe(str(source), DigestCache(tmp_path / "digests.json"))
    assert info.identity() == {"name": "x", "bytes": len(data), "sha256": digest}
    seen: list[tuple[int, int]] = []
    copy = fetch(
        str(source), tmp_path / "y", lambda done, total, **_: seen.append((done, total)), digest
    )
    assert copy.read_bytes() == data
    assert len(seen) == 3
    assert seen[-1] == (len(data), len(data))


def test_another_digest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"data")
    with pytest.raises(InputError, match="not the file that was asked for"):
        fetch(str(tmp_path / "x"), tmp_path / "y", _silent, "0" * 64)


def test_a_copy_that_the_disk_changed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(b"data")
    monkeypatch.setattr("tasks.core.sources.sha256_file", lambda path: "0" * 64)
    with pytest.raises(OSError, match="does not hold the bytes"):
        fetch(str(tmp_path / "x"), tmp_path / "y", _silent)


def test_compression_is_told_by_the_first_bytes(tmp_path: Path) -> None:
    for magic, name in [(b"BZh9", "bz2"), (b"\x1f\x8b\x08", "gz"), (b"\xfd7zXZ\x00", "xz")]:
        (tmp_path / "x").write_bytes(magic)
        assert compression(tmp_path / "x") == name
    (tmp_path / "x.bz2").write_bytes(b"<x/>")
    assert compression(tmp_path / "x.bz2") == "none"
