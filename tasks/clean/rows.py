"""Rows of other sources than dumps: JSON lines, plain text and Parquet, in bounded memory.

Whatever the file is, a row leaves `Rows` as a JSON object, so that workers read one form.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from tasks.clean.raw import Raw
from tasks.core.errors import InputError
from tasks.core.streams import DAMAGE, pieces

LONGEST = 1 << 24
"""Bytes that a row may have."""
_ABSENT = object()
# Under which WikiExtractor and this stage itself write it.
REVISIONS = ("revision", "revid")


class Fields(BaseModel):
    """Where the documents of JSON lines, Parquet and plain text files are found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text_field: str = Field(
        "text", min_length=1, description="The text of a row; `meta.body` is `body` in `meta`"
    )
    id_field: str = Field("id", description="Its id; file and place where a row has none")
    title_field: str = Field("title", description="Its title")
    url_field: str = Field("url", description="Its address")
    language_field: str = Field("language", description="The code of its language, such as `en`")
    text_documents: Literal["file", "line"] = Field(
        "file", description="Plain text: a document a file, or a line"
    )
    default_language: str = Field(
        "en", min_length=2, description="The language of rows that do not say theirs"
    )


class Row(NamedTuple):
    """A row's document; empty where the row does not say it."""

    id: str
    title: str
    url: str
    text: str
    language: str | None
    revision: str


class Rows:
    """The rows of a file, read once and in order.

    Args:
        path: JSON lines or plain text, also compressed with bz2, gz, xz or zst; or Parquet.
        kind: which of them.
        on_damage: what to do where the file ends early or is broken: "error" raises, "keep" ends
            with the last whole row and says so in `damage`.
        progress: called with the bytes of the file that have been read.
        threads: how many decompress a bz2 file, or a Parquet file's columns.
        fields: where the documents are in it.
    """

    def __init__(
        self,
        path: Path,
        kind: Literal["jsonl", "text", "parquet"],
        on_damage: Literal["error", "keep"] = "error",
        progress: Callable[[int], None] | None = None,
        threads: int = 1,
        fields: Fields | None = None,
    ) -> None:
        self.path = path
        self.damage: str | None = None
        self.rows = 0
        self._kind = kind
        self._keep = on_damage == "keep"
        self._progress = progress or (lambda done: None)
        self._threads = threads
        self._fields = fields or Fields()

    def raw(self) -> Iterator[Raw]:
        """Yield each row as `read_row` takes it, without empty lines.

        A row longer than `LONGEST` has no data. Places are bytes of the unpacked file, without the
        end of the line; of Parquet they are numbers of rows.

        Raises:
            ConfigError: the package for zst or Parquet is missing.
            InputError: damaged, and `on_damage` is "error"; or a Parquet file without the column of
                the text, or with one that holds no text.
        """
        try:
            for raw in self._found():
                self.rows += 1
                yield raw
        except DAMAGE as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            self._damaged(error)

    def _found(self) -> Iterator[Raw]:
        if self._kind == "parquet":
            from tasks.clean import parquet

            yield from parquet.rows(self.path, self._fields, self._progress, self._threads)
        elif self._kind == "text" and self._fields.text_documents == "file":
            yield from self._file()
        else:
            for raw in self._lines():
                yield self._as_text(raw, "") if self._kind == "text" else raw

    def _file(self) -> Iterator[Raw]:
        held, size = bytearray(), 0
        for piece in self._pieces():
            size += len(piece)
            held += piece if size <= LONGEST else b""
        if size:
            data = bytes(held) if size <= LONGEST else b""
            yield self._as_text(Raw(0, size, data), self.path.name.split(".")[0])

    def _as_text(self, raw: Raw, title: str) -> Raw:
        if not raw.data:
            return raw
        names = {}
        if title and self._fields.title_field:
            names[self._fields.title_field] = title.encode("utf-8", "surrogateescape")
        # The text last: rows beside it may have theirs under `title`.
        names[self._fields.text_field] = raw.data.removeprefix(codecs.BOM_UTF8)
        return raw._replace(data=packed(names))

    def _lines(self) -> Iterator[Raw]:
        held: list[bytes] = []
        size = start = 0
        for piece in self._pieces():
            *whole, rest = piece.split(b"\n")
            for line in whole:
                held.append(line)
                size += len(line)
                yield from _line(held, start, size)
                start += size + 1
                held, size = [], 0
            size += len(rest)
            held = [*held, rest] if size <= LONGEST else []
        yield from _line(held, start, size)

    def _pieces(self) -> Iterator[bytes]:
        for piece, done in pieces(self.path, self._threads):
            yield piece
            self._progress(done)

    def _damaged(self, error: Exception) -> None:
        self.damage = f"after {self.rows} whole rows: {type(error).__name__}: {error}"
        if not self._keep:
            raise InputError(
                "The file is damaged or ends early", where=self.path,
                expected="a whole file", got=self.damage,
                fix="fetch it again, or keep the rows before the damage: clean.on_damage=keep",
            ) from error  # fmt: skip


def read_row(data: bytes, fields: Fields) -> Row:
    """A document from its row.

    Args:
        data: a JSON object in UTF-8; of none is known that it was too long.
        fields: where it is in it.

    Raises:
        ValueError: why it is none, in words that can be written anywhere.
    """
    if not data:
        raise ValueError(f"longer than {LONGEST >> 20} MiB")
    try:
        found = _DECODER.decode(data.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"no UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from None
    except RecursionError:
        raise ValueError("no JSON that can be read: nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"no JSON object but {_kind(found)}")
    text = _value(found, fields.text_field)
    if text is _ABSENT:
        raise ValueError(f"no field `{fields.text_field}` among {list(found)!r:.200}")
    if not isinstance(text, str | None):
        raise ValueError(f"the field `{fields.text_field}` holds {_kind(text)} and no text")
    row = Row(
        id=_name(found, fields.id_field),
        title=_name(found, fields.title_field),
        url=_name(found, fields.url_field),
        text=text or "",
        language=_name(found, fields.language_field) or None,
        revision=next(filter(None, (_name(found, name) for name in REVISIONS)), ""),
    )
    try:
        "".join(filter(None, row)).encode()
    except UnicodeEncodeError as error:
        half = str(error.object)[error.start]
        raise ValueError(f"half a character: {half!r}, a surrogate without its other") from None
    return row


def packed(values: dict[str, Any]) -> bytes:
    """A row as JSON; texts are bytes, and what is no UTF-8 in them stays so for its reader."""
    # A text that is too long makes a row that is too long.
    if any(isinstance(value, bytes) and len(value) > LONGEST for value in values.values()):
        return b""
    told = {
        name: value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
        for name, value in values.items()
    }
    return json.dumps(told, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _line(held: list[bytes], start: int, size: int) -> Iterator[Raw]:
    if size > LONGEST:
        yield Raw(start, start + size, b"")
        return
    line = b"".join(held)
    if start == 0 and line.startswith(codecs.BOM_UTF8):
        line, start = line[3:], 3
    line = line.removesuffix(b"\r")
    if line and not line.isspace():
        yield Raw(start, start + len(line), line)


def _value(row: dict[str, Any], name: str) -> Any:
    """A field by its own name, or by its names in tables of tables."""
    if name in row:
        return row[name]
    found: Any = row
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            return _ABSENT
        found = found[part]
    return found


def _name(row: dict[str, Any], field: str) -> str:
    value = _value(row, field) if field else None
    if value is None or value is _ABSENT:
        return ""
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"the field `{field}` holds {_kind(value)} and neither text nor whole number")


def _kind(value: Any) -> str:
    kinds = {
        dict: "a table",
        list: "a list",
        str: "a text",
        type(None): "null",
        bool: "a truth value",
    }
    return kinds.get(type(value), "a number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"no JSON that can be trusted: the key {twice!r:.80} is there twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
