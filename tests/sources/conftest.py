"""A model folder on a loopback web server that counts what it sends, and can misbehave."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import toys
from safetensors.torch import load_file, save_file

from megatron_bridge.sources import remote


class Served(ThreadingHTTPServer):
    """A folder on a loopback port, by ranges; counts the bytes of content that it has sent."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.sent, self.asked = folder, Counter[str](), Counter[str]()
        self.ignores_ranges = self.hides = False
        self.shifted = self.one_more = self.listing = False
        self.refuses = self.tells_no_state = False
        self.broken_every = self.busy_every = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def total(self) -> int:
        return sum(self.sent.values())

    def handle_error(self, *_: Any) -> None:
        """Clients that hang up are what is tested."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Served

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        server, name = self.server, unquote(urlsplit(self.path).path).lstrip("/")
        server.asked[name] += 1
        number, path = sum(server.asked.values()), server.folder / name
        if server.busy_every and number % server.busy_every == 0:
            return self._answer(503, b"")
        if server.refuses:
            return self._answer(403, b"expired")
        if not name and server.listing:
            links = "".join(f'<a href="{p.name}">x</a>' for p in server.folder.iterdir())
            return self._answer(200, links.encode(), {"Content-Type": "text/html; charset=utf-8"})
        if server.hides or not path.is_file():
            return self._answer(404, b"not here")
        data, stat = path.read_bytes(), path.stat()
        headers = {} if server.tells_no_state else {"ETag": f'"{stat.st_mtime_ns}"'}
        asked = self.headers.get("Range")
        if not asked or server.ignores_ranges:
            return self._answer(200, data, headers)
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        last = min(last, len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        if server.shifted:
            first, last = first + 1, last + 1
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        body = data[first : last + 1 + server.one_more]
        broken = server.broken_every and number % server.broken_every == 0
        self._answer(206, body, headers, len(body) // 2 if broken else None)

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None,
        only: int | None = None,
    ) -> None:  # fmt: skip
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        name = unquote(urlsplit(self.path).path).lstrip("/")
        for start in range(0, len(body) if only is None else only, 2**16):
            chunk = body[start : start + 2**16][: None if only is None else only - start]
            self.wfile.write(chunk)
            self.server.sent[name] += len(chunk) if status < 300 else 0
        if only is not None:
            self.close_connection = True


@pytest.fixture(scope="session")
def sharded_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards, with a tokenizer's files and a licence."""
    folder: Path = tmp_path_factory.mktemp("remote") / "hf"
    toys.hf_model("llama", folder, hidden_size=144, intermediate_size=300, vocab_size=1201)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "LICENSE").write_text("do as you like")
    _shard(folder, load_file(folder / "model.safetensors"))
    return folder


@pytest.fixture(scope="session")
def shard() -> Any:
    """Writes tensors as two shards with an index."""
    return _shard


@pytest.fixture
def served(
    sharded_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    monkeypatch.setattr(remote, "WAITS", (0.01, 0.01, 0.01))
    shutil.copytree(sharded_model, tmp_path / "served")
    server = Served(tmp_path / "served")
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def _shard(folder: Path, tensors: dict[str, Any]) -> None:
    (folder / "model.safetensors").unlink(missing_ok=True)
    weight_map = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        save_file({n: t for n, t in tensors.items() if weight_map[n] == file}, folder / file)
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)
