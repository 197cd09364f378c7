"""What a source file is: told by what it holds, and only where that does not tell, by its name."""

from __future__ import annotations

import codecs
import json
import re
from pathlib import Path
from typing import Literal

from tasks.core.errors import InputError
from tasks.core.sources import compression
from tasks.core.streams import DAMAGE, pieces

Kind = Literal["dump", "jsonl", "text", "parquet"]

_HEAD, _BINARY = 1 << 16, 1 << 10
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_XML = re.compile(rb"<(?:\?xml|!doctype|html|mediawiki)[\s>]", re.IGNORECASE)
_OBJECT = re.compile(rb'\{\s*["}]')
_ARRAY = re.compile(rb"\[\s*(?=\{)")
_PACKED = {".gz", ".bz2", ".xz", ".zst"}
_NAMES: dict[str, Kind] = {
    ".xml": "dump", ".json": "jsonl", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
}  # fmt: skip


def kind_of(path: Path) -> Kind:
    """What to read a source file as.

    Raises:
        ConfigError: it is compressed with zst, and the package for that is missing.
        InputError: it can be none of these.
    """
    head = _head(path)
    if head.startswith(b"PAR1"):
        if compression(path) != "none":
            raise _unknown(path, "Parquet inside another compression", "unpack the file")
        return "parquet"
    if head.startswith(_UTF16):
        if head.decode("utf-16", "replace").lstrip().startswith("<"):
            return "dump"
        raise _unknown(path, "text in UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > FILE.utf-8")
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if _XML.match(text) or (text.startswith(b"<") and b"<mediawiki" in text[:4096]):
        return "dump"
    if _OBJECT.match(text) or _ARRAY.match(text):
        _require_lines(text, path)
        return "jsonl"
    suffixes = [suffix for suffix in path.suffixes if suffix.lower() not in _PACKED]
    named = _NAMES.get(suffixes[-1].lower(), "text") if suffixes else "text"
    # Of rows of JSON only the bad ones are lost.
    if named != "jsonl" and b"\0" in head[:_BINARY]:
        raise _unknown(path, f"binary data: {head[:16]!r}", "unpack or convert it first")
    return named


def _head(path: Path) -> bytes:
    head = b""
    try:
        for piece, _ in pieces(path):
            head += piece
            if len(head) >= _HEAD:
                break
    # Its reader will tell.
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
    return head


def _require_lines(text: bytes, path: Path) -> None:
    """Refuse JSON that is not a row a line, if the head is enough to tell."""
    opening = _ARRAY.match(text)
    # A character may be cut at the end.
    rest = text[opening.end() if opening else 0 :].decode("utf-8", "replace")
    try:
        first, end = json.JSONDecoder().raw_decode(rest)
    # Too long, or no JSON: rows are judged one by one.
    except (ValueError, RecursionError):
        return
    if opening and rest[end:].lstrip()[:1] in (",", "]"):
        raise _unknown(path, "one JSON list of all rows", "jq -c '.[]' FILE > FILE.jsonl")
    # A line break here and there is damage; one before and behind each member is a style.
    if rest.count("\n", 0, end) > len(first) > 0:
        raise _unknown(path, "JSON objects of several lines", "jq -c . FILE > FILE.jsonl")


def _unknown(path: Path, got: str, fix: str) -> InputError:
    return InputError(
        "The source is of an unknown kind", where=path, got=got, fix=fix,
        expected="a MediaWiki dump, JSON lines, Parquet or text in UTF-8",
    )  # fmt: skip
