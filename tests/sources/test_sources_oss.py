"""oss:// through ossfs, against a stand-in for the service on a loopback port."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from megatron_bridge import hf
from megatron_bridge.errors import InputError, RetryableError
from megatron_bridge.sources import remote, source

pytest.importorskip("ossfs", reason="ossfs is not installed (the extra `oss`)")

PREFIX = "models/toy/"


class Bucket(BaseHTTPRequestHandler):
    """Lists one folder, and gives ranges of its files to who signs with the right key."""

    protocol_version = "HTTP/1.1"
    folder: Path
    asked: list[tuple[str, str | None]]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        key = unquote(urlsplit(self.path).path).removeprefix("/bucket/")
        path, asked = self.folder / key.removeprefix(PREFIX), self.headers.get("Range")
        self.asked.append((key, asked))
        if "OSS own-key:" not in self.headers.get("Authorization", ""):
            return self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        if not key:
            listed = "".join(map(_entry, self.folder.iterdir()))
            return self._answer(
                200, f"<ListBucketResult>{_HEAD}{listed}</ListBucketResult>".encode()
            )
        first, last = map(int, (asked or "=0-").split("=")[1].split("-"))
        data = path.read_bytes()
        self._answer(206, data[first : last + 1])

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("x-oss-request-id", "1")
        self.end_headers()
        self.wfile.write(body)


_HEAD = f"<Name>bucket</Name><Prefix>{PREFIX}</Prefix><IsTruncated>false</IsTruncated>"


def _entry(path: Path) -> str:
    fields = {
        "Key": f"{PREFIX}{path.name}",
        "LastModified": "2026-01-01T00:00:00.000Z",
        "ETag": hashlib.md5(path.read_bytes()).hexdigest(),
        "Type": "Normal",
        "Size": path.stat().st_size,
        "StorageClass": "Standard",
    }
    return f"<Contents>{''.join(f'<{k}>{v}</{k}>' for k, v in fields.items())}</Contents>"


@pytest.fixture
def bucket(sharded_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Bucket]]:
    handler = type("One", (Bucket,), {"folder": sharded_model, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(remote, "WAITS", (0.01,))
    monkeypatch.setenv("OSS_ACCESS_KEY_ID", "own-key")
    monkeypatch.setenv("OSS_ACCESS_KEY_SECRET", "geheim")
    monkeypatch.setenv("OSS_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    server.server_close()


def test_tensors_are_read_by_ranges(bucket: type[Bucket], sharded_model: Path) -> None:
    with hf.Weights(source.Source.of_folder(sharded_model)) as local:
        with source.opened("oss://bucket/models/toy") as found, hf.Weights(found) as weights:
            assert weights.names == local.names
            for name in ("model.norm.weight", weights.names[-1]):
                assert weights.read(name).equal(local.read(name))
            assert weights.state()[0][2]
            assert (found.files / "LICENSE").is_file()
    whole = {path.name for path in sharded_model.iterdir()}
    asked = {key.removeprefix(PREFIX) for key, ranges in bucket.asked if ranges is None}
    assert not asked & whole


def test_a_wrong_key_and_a_dead_endpoint_are_told(
    bucket: type[Bucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSS_ACCESS_KEY_ID", "another")
    with pytest.raises(InputError) as refused, source.opened("oss://bucket/models/toy"):
        pass
    monkeypatch.setenv("OSS_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RetryableError) as dead, source.opened("oss://bucket/models/toy"):
        pass
    assert "geheim" not in f"{refused.value} {dead.value}"
