"""A model folder elsewhere: which files it has, and those beside the weights brought to this disk.

A filesystem lists its files. A web server lists them only if it shows a page of links; where it
does not, it is asked for the names that model folders have.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from megatron_bridge.errors import InputError
from megatron_bridge.sources import filesystem
from megatron_bridge.sources.address import Address
from megatron_bridge.sources.folder import INDEX_SUFFIX, KINDS, WEIGHT_SUFFIXES
from megatron_bridge.sources.http import Http
from megatron_bridge.sources.remote import patiently, transport
from megatron_bridge.sources.transport import Absent

LIMIT = 512 * 2**20
"""In bytes: what the files beside the weights may have, together."""
_PAGE = 4 * 2**20
_CONFIG = "config.json"
_KNOWN = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "qwen.tiktoken",
    "chat_template.jinja",
    "chat_template.json",
    "certificate.json",
    "README.md",
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
    "NOTICE.md",
    "NOTICE.txt",
    "USE_POLICY.md",
)
"""What a model folder may have beside `config.json` and weights."""


def fetch(address: Address, into: Path) -> tuple[tuple[str, ...], int]:
    """Bring the files beside the weights, and the weights' index, into a folder on this disk.

    Returns:
        The names of all files there, weights included, and the bytes that were fetched.

    Raises:
        InputError: no `config.json`, a name that leads elsewhere, or files of an absurd size.
        RetryableError: connections fail again and again.
    """
    listed = _listed(address)
    if listed is None:
        return _asked_by_name(address, into)
    if _CONFIG not in listed:
        raise _no_config(address, sorted(listed)[:8])
    beside = sorted(name for name in listed if not name.endswith(WEIGHT_SUFFIXES))
    return tuple(sorted(listed)), sum(_save(address, into, beside).values())


def _asked_by_name(address: Address, into: Path) -> tuple[tuple[str, ...], int]:
    sizes = _save(address, into, [_CONFIG], optional=True)
    if not sizes:
        raise _no_config(address, [f"no listing, and no {_CONFIG}"])
    sizes |= _save(address, into, _KNOWN, optional=True)
    sizes |= _save(address, into, _modules(into), optional=True)
    weights: set[str] = set()
    for index, *_ in KINDS:
        if found := _save(address, into, [index], optional=True):
            sizes |= found
            weights |= {_safe(name, address) for name in _shards(into / index)}
        elif _is_there(address.join(single := index.removesuffix(INDEX_SUFFIX))):
            weights.add(single)
        if weights:
            break
    return tuple(sorted({*sizes, *weights})), sum(sizes.values())


def _listed(address: Address) -> set[str] | None:
    """The names of the folder's files; None where a server does not tell."""
    if not address.is_http:
        names = patiently(lambda: filesystem.listed(address), address.shown)
        return {_safe(name, address) for name in names if not name.startswith(".")}
    page = patiently(lambda: Http(address.join("")).page(_PAGE), address.shown)
    links = set(_links(page, urlsplit(address.join("").url).path)) if page else set()
    return links if _CONFIG in links else None


def _links(page: str, folder: str) -> Iterable[str]:
    """Names of files right below `folder` that a page links to."""
    reader = _Links()
    reader.feed(page)
    for link in reader.found:
        path = urlsplit(urljoin(folder, link)).path
        name = unquote(path.removeprefix(folder))
        if path.startswith(folder) and name and not {"/", "\\", "\0"} & set(name):
            if not name.startswith("."):
                yield name


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def _save(
    address: Address, into: Path, names: Iterable[str], optional: bool = False
) -> dict[str, int]:
    """Fetch files; return their sizes. What is optional may be missing."""
    left = LIMIT - sum(path.stat().st_size for path in into.iterdir())
    sizes = {}
    for name in names:
        file = transport(address.join(_safe(name, address)))
        try:
            data = patiently(lambda file=file, left=left: file.whole(left), file.shown)  # type: ignore[misc]
        except Absent:
            if not optional:
                raise
            continue
        (into / name).write_bytes(data)
        sizes[name] = len(data)
        left -= len(data)
    return sizes


def _modules(folder: Path) -> list[str]:
    """Names of the Python files that hold a model's own classes."""
    found = set()
    for name in (_CONFIG, "tokenizer_config.json"):
        if (folder / name).is_file():
            table = _read(folder / name).get("auto_map", {})
            entries = table.values() if isinstance(table, dict) else ()
            for entry in entries:
                for text in entry if isinstance(entry, list) else [entry]:
                    if isinstance(text, str) and "--" not in text:
                        found.add(text.rpartition(".")[0] + ".py")
    return sorted(found)


def _shards(index: Path) -> set[str]:
    table = _read(index).get("weight_map", {})
    return {str(name) for name in table.values()} if isinstance(table, dict) else set()


def _read(path: Path) -> dict[str, Any]:
    """A JSON table; an empty one for what is none, which is refused where it is used."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        return {}
    return table if isinstance(table, dict) else {}


def _is_there(address: Address) -> bool:
    try:
        patiently(lambda: transport(address).begin(1), address.shown)
    except Absent:
        return False
    return True


def _safe(name: str, address: Address) -> str:
    """A file's name that stays in its folder."""
    if {"/", "\\", "\0"} & set(name) or name in ("", ".", ".."):
        raise InputError(
            "A file's name leads out of the folder",
            where=address.shown,
            expected="names of files in the folder itself",
            got=repr(name[:80]),
            fix="do not use this model; it may have been made to overwrite files",
        )
    return name


def _no_config(address: Address, got: Collection[str]) -> InputError:
    return InputError(
        "The URL does not name a model folder",
        where=address.shown,
        expected=f"{_CONFIG} beside weights; looked for a listing, for {_CONFIG}, then for "
        f"{', '.join(index for index, *_ in KINDS)} and what they list",
        got=", ".join(got) or "an empty folder",
        fix="give the URL of the folder, the part before /config.json",
    )
