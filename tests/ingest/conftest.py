"""Files on a loopback port, as a web server gives them or as OSS does; it can misbehave."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from megatron_bridge.sources import remote


class Host(ThreadingHTTPServer):
    """Its `files` by path (`/bucket/key` for OSS), and what was asked of it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.sent, self.ranges = Counter[str](), list[tuple[str, str | None]]()
        self.gives_ranges = self.tells_etag = True
        self.drops_after = self.drops = 0
        self.pause = 0.0
        self.key = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        """Clients that hang up are what is tested."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Host

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        server, parts = self.server, urlsplit(self.path)
        path, asked = unquote(parts.path), self.headers.get("Range")
        server.ranges.append((path, asked))
        if server.key and f"OSS {server.key}:" not in self.headers.get("Authorization", ""):
            return self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        if server.key and path.count("/") == 2 and path.endswith("/"):
            return self._answer(200, _listing(server, path, parse_qs(parts.query)))
        if path not in server.files:
            if server.key:
                return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return self._answer(404, b"not here")
        time.sleep(server.pause)
        data = server.files[path]
        headers = {"ETag": f'"{hashlib.md5(data).hexdigest()}"'} if server.tells_etag else {}
        if not asked or not server.gives_ranges:
            return self._answer(200, data, headers)
        first, last = asked.removeprefix("bytes=").split("-")
        start, stop = int(first), min(int(last or len(data)), len(data) - 1) + 1
        if start >= len(data):
            return self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        self._answer(206, data[start:stop], headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        length = {"Content-Length": str(len(body)), "x-oss-request-id": "1"}
        for key, value in {**(headers or {}), **length}.items():
            self.send_header(key, value)
        self.end_headers()
        server = self.server
        if server.drops and len(body) > server.drops_after:
            server.drops -= 1
            body, self.close_connection = body[: server.drops_after], True
        if self.command == "HEAD":
            return
        self.wfile.write(body)
        server.sent[unquote(urlsplit(self.path).path)] += len(body) if status < 300 else 0


def _listing(server: Host, bucket: str, query: dict[str, list[str]]) -> bytes:
    prefix = query.get("prefix", [""])[0]
    keys = sorted(path.removeprefix(bucket) for path in server.files if path.startswith(bucket))
    found, folders = "", set()
    for key in (key for key in keys if key.startswith(prefix)):
        inner, slash, _ = key.removeprefix(prefix).partition("/")
        if slash and query.get("delimiter"):
            folders.add(f"{prefix}{inner}/")
            continue
        data = server.files[bucket + key]
        fields = {
            "Key": escape(key), "LastModified": "2026-01-01T00:00:00.000Z", "Type": "Normal",
            "ETag": f'"{hashlib.md5(data).hexdigest().upper()}"', "Size": len(data),
            "StorageClass": "Standard",
        }  # fmt: skip
        told = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
        found += f"<Contents>{told}</Contents>"
    for folder in sorted(folders):
        found += f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"
    head = f"<Name>{bucket.strip('/')}</Name><Prefix>{prefix}</Prefix>"
    end = "<IsTruncated>false</IsTruncated>"
    return f"<ListBucketResult>{head}{end}{found}</ListBucketResult>".encode()


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `${PASSWORD}` in a source stands for."""
    monkeypatch.setenv("PASSWORD", "geheim")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(remote, "WAITS", (0.01, 0.01))
    server = Host()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def bucket(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    """The same host as OSS, for who signs with the right key."""
    host.key = "own-key"
    monkeypatch.setenv("OSS_ACCESS_KEY_ID", "own-key")
    monkeypatch.setenv("OSS_ACCESS_KEY_SECRET", "geheim")
    monkeypatch.setenv("OSS_ENDPOINT", host.url)
    return host
