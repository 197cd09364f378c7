"""Rows of JSON lines, text and Parquet: each is a document, or is named with the reason."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from tasks.clean import rows
from tasks.clean.kinds import kind_of
from tasks.clean.rows import Fields, Row, Rows, read_row
from tasks.core.errors import ConfigError, InputError

GOOD = [
    {
        "id": number,
        "url": f"https://x.org/{number}",
        "title": f"Nº {number}",
        "text": "汉字 é 😀" * 9,
    }
    for number in range(300)
]


def _zst(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard", reason="the extra `zst` is not installed")
    packed: bytes = zstandard.compress(data)
    return packed


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress,
    ".zst": _zst,
}  # fmt: skip


def _lines(table: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in table)


def _read(path: Path, **options: Any) -> tuple[list[Row], list[str]]:
    """The documents, and why others are none."""
    fields = options.setdefault("fields", Fields())
    kind = options.pop("kind", None) or kind_of(path)
    assert kind != "dump"
    found, reasons = [], []
    for raw in Rows(path, kind, **options).raw():
        try:
            found.append(read_row(raw.data, fields))
        except ValueError as error:
            reasons.append(f"{error}".encode().decode())
    return found, reasons


def _of(path: Path, data: bytes, **options: Any) -> tuple[list[Row], list[str]]:
    path.write_bytes(data)
    return _read(path, **options)


@pytest.mark.parametrize("suffix", PACKERS)
def test_loose_json_in_every_compression(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.jsonl{suffix}"
    found, reasons = _of(path, PACKERS[suffix](_lines(GOOD)))
    assert [row.text for row in found] == [row["text"] for row in GOOD]
    assert found[7] == Row("7", "Nº 7", "https://x.org/7", GOOD[7]["text"], None, "")
    assert reasons == []


def test_places_lead_back_to_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "x"
    data = b"\xef\xbb\xbf" + _lines(GOOD[:9]).replace(b"\n", b"\r\n") + b'\n \n{"text": "last"}'
    path.write_bytes(data)
    assert kind_of(path) == "jsonl"
    found = list(Rows(path, "jsonl").raw())
    assert len(found) == 10
    assert all(data[raw.start : raw.stop] == raw.data for raw in found)
    assert read_row(found[-1].data, Fields()).text == "last"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "no JSON: Expecting value"),
        (b'{"text": "cut', "no JSON: Unterminated string"),
        (b'{"text": "a"}{"text": "b"}', "no JSON: Extra data"),
        (b'["text", "a"]', "no JSON object but a list"),
        (b'"text"', "no JSON object but a text"),
        (b"17", "no JSON object but a number"),
        (b"null", "no JSON object but null"),
        (b'{"body": "a", "id": 1}', "no field `text` among ['body', 'id']"),
        (b'{"\\ud800": "a"}', "no field `text` among ['\\ud800']"),
        (b'{"text": 5}', "the field `text` holds a number and no text"),
        (b'{"text": NaN}', "the field `text` holds a number and no text"),
        (b'{"text": ["a"]}', "the field `text` holds a list and no text"),
        (b'{"text": "a", "id": 1.5}', "the field `id` holds a number and neither text nor whole"),
        (b'{"text": "a", "title": true}', "the field `title` holds a truth value"),
        (b'{"text": "a", "text": "b"}', "the key 'text' is there twice"),
        (b'{"text": "a", "x": [{"y": 1, "y": 2}]}', "the key 'y' is there twice"),
        (b'{"text": "\xff"}', "no UTF-8: invalid start byte at byte 10"),
        (b'{"text": "\xe6\xb1"}', "no UTF-8: invalid continuation byte at byte 10"),
        (b'{"text": "a\0b"}', "no JSON: Invalid control character"),
        (b'{"text": "\\ud83d"}', "half a character: '\\ud83d'"),
        (b'{"text": "a", "title": "\\udc00 "}', "half a character: '\\udc00'"),
        (b'{"text": "a", "n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"text": "a", "n": ' + b"9" * 5000 + b"}", "4300 digits"),
    ],
)
def test_a_bad_row_is_told_and_the_others_stay(tmp_path: Path, line: bytes, reason: str) -> None:
    data = _lines(GOOD[:2]) + line + b"\n" + _lines(GOOD[2:4])
    found, reasons = _of(tmp_path / "x.jsonl", data)
    assert [row.id for row in found] == ["0", "1", "2", "3"]
    assert len(reasons) == 1
    assert reason in reasons[0]
    assert len(reasons[0]) < 400


def test_what_is_no_fault(tmp_path: Path) -> None:
    data = b'{"text": null}\n{"text": ""}\n{"text": "\\ud83d\\ude00\\u0000", "x": NaN, "id": "7"}\n'
    found, reasons = _of(tmp_path / "x.jsonl", data)
    assert [row.text for row in found] == ["", "", "😀\0"]
    assert (found[2].id, reasons) == ("7", [])


def test_fields_have_other_names_and_lie_deeper(tmp_path: Path) -> None:
    fields = Fields(
        text_field="doc.body", id_field="meta.key", title_field="", url_field="a.b",
        language_field="meta.lang",
    )  # fmt: skip
    row = {
        "doc": {"body": "text"}, "meta": {"key": 3, "lang": "zh"}, "a.b": "here", "title": [1],
        "revid": "99",
    }  # fmt: skip
    found, _ = _of(tmp_path / "x.jsonl", _lines([row]), fields=fields)
    assert found == [Row("3", "", "here", "text", "zh", "99")]


def test_a_line_without_end_is_passed_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "LONGEST", 1 << 20)
    data = _lines(GOOD[:1]) + b'{"text": "' + b"x" * (1 << 26) + b'"}\n' + _lines(GOOD[1:2])
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(data, 1))
    size = len(data)
    del data
    tracemalloc.start()
    raws = list(Rows(path, "jsonl").raw())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [bool(raw.data) for raw in raws] == [True, False, True]
    assert raws[1].stop - raws[1].start == (1 << 26) + 12
    assert raws[2].stop == size - 1
    assert peak < 1 << 23
    with pytest.raises(ValueError, match="longer than"):
        read_row(raws[1].data, Fields())


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_file_that_ends_early(tmp_path: Path, suffix: str) -> None:
    noise = random.Random(7)
    table = [{"text": f"{noise.random()}" * 20} for _ in range(9000)]
    packed = PACKERS[suffix](_lines(table))
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(packed[: len(packed) * 2 // 3])
    with pytest.raises(InputError, match=r"ends early.*clean.on_damage=keep"):
        _read(path)
    reader = Rows(path, "jsonl", "keep")
    found = [read_row(raw.data, Fields()).text for raw in reader.raw()]
    assert 0 < len(found) < len(table)
    assert found == [row["text"] for row in table[: len(found)]]
    assert reader.damage
    assert reader.damage.startswith(f"after {len(found)} whole rows")
    path.write_bytes(packed[:20])
    reader = Rows(path, "jsonl", "keep")
    assert list(reader.raw()) == []
    assert "after 0 whole rows" in f"{reader.damage}"


def test_text_is_a_document_a_file_or_a_line(tmp_path: Path) -> None:
    path = tmp_path / "Tide tables.txt.gz"
    data = gzip.compress(b"\xef\xbb\xbfSpring tides\r\n\r\nare high.\n")
    found, _ = _of(path, data)
    assert found == [Row("", "Tide tables", "", "Spring tides\r\n\r\nare high.\n", None, "")]
    found, _ = _read(path, fields=Fields(text_documents="line", text_field="a.b"))
    assert [row.text for row in found] == ["Spring tides", "are high."]
    found, reasons = _of(
        tmp_path / "x.txt", b"good\nb\xffd\nlast", fields=Fields(text_documents="line")
    )
    assert [row.text for row in found] == ["good", "last"]
    assert reasons == ["no UTF-8: invalid start byte at byte 11"]
    found, _ = _of(tmp_path / "y.txt", b"good", fields=Fields(text_field="title"))
    assert [row.text for row in found] == ["good"]
    # A document without text, which is counted as such.
    (blank,), _ = _of(tmp_path / "blank.txt", b" \n\n")
    assert blank.text == " \n\n"


def test_a_text_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LONGEST", 1 << 18)
    found, reasons = _of(tmp_path / "x.txt", b"word " * (1 << 17))
    assert (found, len(reasons)) == ([], 1)


def _table(**columns: Any) -> pyarrow.Table:
    return pyarrow.table({"id": list(range(len(GOOD))), **columns})


TEXTS = [row["text"] for row in GOOD]


@pytest.mark.parametrize("packing", ["NONE", "SNAPPY", "GZIP", "ZSTD"])
def test_parquet(tmp_path: Path, packing: str) -> None:
    table = _table(text=TEXTS, title=[None, *TEXTS[1:]], score=[0.5] * len(GOOD))
    parquet.write_table(table, tmp_path / "x", row_group_size=70, compression=packing)
    told: list[int] = []
    found, reasons = _read(tmp_path / "x", progress=told.append)
    assert [(row.id, row.text) for row in found] == [(str(n), t) for n, t in enumerate(TEXTS)]
    assert (found[0].title, found[1].title, reasons) == ("", TEXTS[1], [])
    assert told[-1] == (tmp_path / "x").stat().st_size
    raws = list(Rows(tmp_path / "x", "parquet").raw())
    assert [(raw.start, raw.stop) for raw in raws] == [(n, n + 1) for n in range(len(GOOD))]


@pytest.mark.parametrize(
    "kind",
    [pyarrow.large_string(), pyarrow.binary(), pyarrow.large_binary(),
     pyarrow.dictionary(pyarrow.int32(), pyarrow.string())],
    ids=str,
)  # fmt: skip
def test_parquet_texts_of_every_type(tmp_path: Path, kind: Any) -> None:
    given = [text.encode() for text in TEXTS] if "binary" in str(kind) else TEXTS
    column = pyarrow.array(given).cast(kind)
    parquet.write_table(_table(text=column), tmp_path / "x")
    assert [row.text for row in _read(tmp_path / "x")[0]] == TEXTS


def test_parquet_that_is_no_utf_8_costs_a_row(tmp_path: Path) -> None:
    column = pyarrow.array([b"good", b"b\xffd", None, b"last"])
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "x")
    found, reasons = _read(tmp_path / "x")
    assert [row.text for row in found] == ["good", "", "last"]
    assert len(reasons) == 1


def test_parquet_in_tables_of_tables(tmp_path: Path) -> None:
    meta = [{"lang": "de", "n": 1}, None, {"lang": None, "n": 3}]
    table = pyarrow.table({"text": ["a", "b", "c"], "meta": meta, "url": pyarrow.nulls(3)})
    parquet.write_table(table, tmp_path / "x")
    found, _ = _read(tmp_path / "x", fields=Fields(language_field="meta.lang", id_field="meta.n"))
    assert [(row.language, row.id) for row in found] == [("de", "1"), (None, ""), (None, "3")]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("body", "no column for the text.*`body`.*id, text, words, meta, score"),
        ("words", "holds no text.*column words.*list<"),
        ("meta", "holds no text.*column meta.*struct<"),
        ("score", "holds no text.*column score.*double"),
        ("id", "holds no text.*column id.*int64"),
    ],
)
def test_parquet_columns_that_hold_no_text(tmp_path: Path, field: str, message: str) -> None:
    size = len(GOOD)
    table = _table(text=TEXTS, words=[["a"]] * size, meta=[{"a": "b"}] * size, score=[0.5] * size)
    parquet.write_table(table, tmp_path / "x")
    with pytest.raises(InputError, match=message):
        _read(tmp_path / "x", fields=Fields(text_field=field))


def test_parquet_columns_of_one_name(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays([[1], ["a"], ["b"]], ["n", "text", "text"])
    parquet.write_table(table, tmp_path / "x")
    with pytest.raises(InputError, match=r"two columns of one name.*text"):
        _read(tmp_path / "x")
    # Of others it does not matter.
    parquet.write_table(
        table.rename_columns(["text", "a", "a"]).cast(
            pyarrow.schema(
                [("text", pyarrow.string()), ("a", pyarrow.string()), ("a", pyarrow.string())]
            )
        ),
        tmp_path / "x",
    )
    assert [row.text for row in _read(tmp_path / "x")[0]] == ["1"]


def test_parquet_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(_table(text=TEXTS), path, row_group_size=50, compression="GZIP")
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:-9])
    with pytest.raises(InputError, match="ends early"):
        _read(path)
    middle = parquet.ParquetFile(pyarrow.BufferReader(bytes(data))).metadata.row_group(3).column(1)
    start = middle.data_page_offset
    data[start + 30 : start + middle.total_compressed_size] = bytes(
        middle.total_compressed_size - 30
    )
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        _read(path)
    found, _ = _read(path, on_damage="keep")
    assert [row.text for row in found] == TEXTS[: len(found)]
    assert 0 < len(found) <= 150


def test_parquet_wants_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet.write_table(_table(text=TEXTS), tmp_path / "x")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"megaline\[parquet\]"):
        _read(tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a", b'<mediawiki xml:lang="en">', "dump"),
        ("a.txt", b"\xef\xbb\xbf<?xml version='1.0'?>\n<mediawiki>", "dump"),
        ("a", "<mediawiki>".encode("utf-16"), "dump"),
        ("page", b"<!DOCTYPE html><html>", "dump"),
        ("a.txt", b'\n {"text": "x"}\n', "jsonl"),
        ("wiki_00", b'{"text": "' + b"x" * 200_000, "jsonl"),
        ("a.txt", b"{{template}} and so on", "text"),
        ("a.jsonl.gz", b"damaged\n", "jsonl"),
        ("a.jsonl", b'\0{"text": "x"}\n', "jsonl"),
        ("a.v2.ndjson", b"", "jsonl"),
        ("a", b"", "text"),
        ("a.md", b"[1] A footnote", "text"),
        ("a.txt", b"<doc id=1>", "text"),
        ("a.txt", b"A dump begins with <mediawiki>.", "text"),
        ("a.jsonl", b'{"text": "A dump begins with <mediawiki>."}', "jsonl"),
        ("a", b"<!-- ours --><mediawiki>", "dump"),
        ("a.jsonl", b'[{"a": 1}\n{"a": 1}\n', "jsonl"),
        ("a.jsonl", b'{\n"id": 1, "text": "x"}\n{"id": 2, "text": "y"}', "jsonl"),
    ],
)
def test_the_kind_is_told_by_what_a_file_holds(
    tmp_path: Path, name: str, data: bytes, kind: str
) -> None:
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert kind_of(tmp_path / name) == kind


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'[{"text": "x"}, {"text": "y"}]', r"one JSON list.*jq -c '\.\[\]'"),
        (b'[\n  {\n    "text": "x"\n  },\n', r"one JSON list.*jq -c '\.\[\]'"),
        (json.dumps(GOOD[0], indent=1).encode(), r"several lines.*jq -c \. "),
        (b"text\0in binary", "binary data"),
        ("words".encode("utf-16"), "UTF-16.*iconv"),
        (gzip.compress(b"PAR1"), "Parquet inside another compression"),
    ],
)
def test_what_can_be_none_is_refused_with_advice(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(InputError, match=message):
        kind_of(tmp_path / "x")


@pytest.mark.parametrize("seed", range(3))
def test_mutated_lines_never_stop_a_run(tmp_path: Path, seed: int) -> None:
    """Rows in are documents and reasons, whatever happens to their bytes."""
    dice = random.Random(seed)
    lines = _lines(GOOD * 10).splitlines(keepends=True)
    for number in range(len(lines)):
        line = bytearray(lines[number])
        for _ in range(dice.choice((0, 1, 1, 2, 8))):
            place, byte = (
                dice.randrange(len(line)),
                dice.choice((dice.randrange(256), *b'\n"{}[\\\0')),
            )
            if dice.random() < 0.3:
                del line[place : place + dice.choice((1, 2, 40))]
                line = line or bytearray(b"\n")
            elif dice.random() < 0.5:
                line.insert(place, byte)
            else:
                line[place] = byte
        lines[number] = bytes(line)
    path = tmp_path / "x.jsonl"
    found, reasons = _of(path, b"".join(lines))
    expected = [line for line in b"".join(lines).split(b"\n") if line.strip()]
    assert len(found) + len(reasons) == len(expected)
    assert len(found) > 500
    assert len(reasons) > 500
    # The same judgement as plain `json`'s, where that has one.
    assert sum(map(_is_good, expected)) == len(found)
    for row in found:
        json.dumps(row, ensure_ascii=False).encode()


def _is_good(line: bytes) -> bool:
    try:
        pairs: list[Any] = json.loads(line, object_pairs_hook=list)
        names = [name for name, _ in pairs]
        row = dict(pairs)
        "".join(f"{row.get(name)}" for name in ("id", "url", "title", "text")).encode()
    except (ValueError, TypeError, RecursionError):
        return False
    return len(set(names)) == len(names) and isinstance(row.get("text", 0), str)
