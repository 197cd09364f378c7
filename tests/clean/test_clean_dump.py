"""Dumps in every compression, damaged dumps, and files that are none."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tasks.clean.dump import Dump
from tasks.clean.mediawiki import Page, read_page, title_of
from tasks.core.errors import ConfigError, InputError

ENGLISH = Path(__file__).parents[1] / "data" / "wiki" / "english.xml"


def _multistream(data: bytes) -> bytes:
    return b"".join(bz2.compress(data[at : at + 700]) for at in range(0, len(data), 700))


def _latin(data: bytes) -> bytes:
    declared = '<?xml version="1.0" encoding="ISO-8859-1"?>\n' + data.decode()
    return declared.encode("latin-1", "xmlcharrefreplace")


def _pages(dump: Dump) -> list[Page]:
    return [read_page(raw.data, dump.site) for raw in dump.raw()]


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "declaration": lambda data: b'<?xml version="1.0" encoding="utf-8"?>\n<!-- a -->' + data,
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "bz2": bz2.compress,
    "bz2 of many streams": _multistream,
    "gz": gzip.compress,
    "xz": lzma.compress,
    "Latin 1": _latin,
}


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS.keys())
def test_every_compression_gives_the_same_pages(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    # The name tells nothing: only the first bytes do.
    path = tmp_path / "dump"
    path.write_bytes(pack(ENGLISH.read_bytes()))
    read: list[int] = []
    dump = Dump(path, progress=read.append)
    pages = _pages(dump)
    assert [page.title for page in pages] == [
        "Stone Wall", "Wall of Stone", "Examplepedia:About", "Skin.css", "Only a box", "Stub",
        "Tide: rise & fall",
    ]  # fmt: skip
    assert pages[1] == Page(
        "2", "Wall of Stone", 0, True, "wikitext", "1002", "#REDIRECT [[Stone Wall]]"
    )
    assert (pages[2].namespace, pages[3].model) == (4, "css")
    assert dump.site.language == "en"
    assert dump.site.hidden == ["Media", "File", "Category"]
    assert dump.site.url("Tide: rise & fall?") == (
        "https://ex.example.org/wiki/Tide:_rise_&_fall%3F"
    )
    assert read[-1] == path.stat().st_size


@pytest.mark.parametrize("damage", [b"", b"<page><title>Unclosed</title>"])
def test_a_page_lies_where_its_place_says(damage: bytes, tmp_path: Path) -> None:
    data = ENGLISH.read_bytes().replace(b"  <page>", damage + b"  <page>")
    path = tmp_path / "dump"
    # In UTF-16 places are those of the same text in UTF-8.
    for name in ("plain", "byte order mark", "bz2 of many streams", "UTF-16"):
        path.write_bytes(PACKERS[name](data))
        text = b"\xef\xbb\xbf" + data if name == "byte order mark" else data
        found = list(Dump(path).raw())
        assert [raw.data for raw in found] == [text[raw.start : raw.stop] for raw in found]
        assert len(found) == (14 if damage else 7)
        assert [one.stop <= two.start for one, two in pairwise(found)] == [True] * len(found[1:])


@pytest.mark.parametrize("pack", [bytes, _multistream, gzip.compress, lzma.compress])
def test_a_dump_that_ends_early(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    data = ENGLISH.read_bytes()
    path = tmp_path / "dump"
    if pack is bytes:
        path.write_bytes(data[: data.index(b"<title>Stub") + 9])
    else:
        # Incompressible padding after the pages, so that the cut falls behind some of them.
        whole = pack(
            data + "".join(f"<!--{n * 2654435761 % 2**32}-->" for n in range(9999)).encode()
        )
        path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"clean\.on_damage=keep"):
        list(Dump(path).raw())
    dump = Dump(path, on_damage="keep")
    titles = [page.title for page in _pages(dump)]
    assert titles[:2] == ["Stone Wall", "Wall of Stone"]
    assert dump.damage is not None
    assert f"after {len(titles)} whole pages" in dump.damage


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html><body>404</body></html>", "no MediaWiki dump"),
        (b"hello", "no MediaWiki dump"),
        (b"<mediawiki></mediawiki>", "holds no page"),
        (b'<!DOCTYPE x [<!ENTITY a "aa">]><mediawiki>&a;</mediawiki>', "no MediaWiki dump"),
        (b"BZh9 but not really", "damaged"),
    ],
)
def test_what_is_no_dump_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(Dump(path).raw())


def _zst(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    half = len(data) // 2
    return b"".join(zstandard.compress(part) for part in (data[:half], data[half:]))


def test_zst(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml.zst"
    packed = _zst(ENGLISH.read_bytes())
    path.write_bytes(packed)
    assert len(list(Dump(path).raw())) == 7
    path.write_bytes(packed[:-20])
    dump = Dump(path, on_damage="keep")
    assert 0 < len(list(dump.raw())) < 7
    assert dump.damage is not None
    path.write_bytes(packed[:40] + bytes(9) + packed[49:])
    with pytest.raises(InputError, match="damaged"):
        list(Dump(path).raw())


def test_zst_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "dump.xml.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    with pytest.raises(ConfigError, match=r"megaline\[zst\]"):
        list(Dump(path).raw())


@pytest.mark.parametrize("damage", ["none", "cut", "flipped"])
def test_threads_read_what_one_reads(damage: str, tmp_path: Path) -> None:
    head, page, tail = ENGLISH.read_bytes().partition(b"  <page>")
    body = (page + tail.partition(b"</page>")[0] + b"</page>") * 2000
    data = head + body + b"</mediawiki>"
    size = 100_000
    packed = b"".join(bz2.compress(data[at : at + size]) for at in range(0, len(data), size))
    if damage == "cut":
        packed = packed[: len(packed) * 2 // 3]
    if damage == "flipped":
        middle = len(packed) // 2
        packed = packed[:middle] + bytes([packed[middle] ^ 255]) + packed[middle + 1 :]
    path = tmp_path / "dump.xml.bz2"
    path.write_bytes(packed)
    one, two = (Dump(path, "keep", threads=threads) for threads in (1, 3))
    assert list(one.raw()) == list(two.raw())
    assert one.pages > 0
    assert (one.pages, one.damage) == (two.pages, two.damage)
    assert (one.pages == 2000) == (damage not in ("cut", "flipped"))


def test_a_page_that_does_not_end_is_not_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.clean.dump._LONGEST_PAGE", 1 << 20)
    path = tmp_path / "dump.xml"
    path.write_bytes(ENGLISH.read_bytes() + b"<page>" + bytes(3 << 20))
    with pytest.raises(InputError, match="the XML does not end"):
        list(Dump(path).raw())
    path.write_bytes(b"<mediawiki>" + b"<a/>" * (1 << 19) + b"<page></page></mediawiki>")
    with pytest.raises(InputError, match="no page begins"):
        list(Dump(path).raw())


def test_pages_stream(tmp_path: Path) -> None:
    """A page is there long before the file has been read: nothing is collected first."""
    head, page, tail = ENGLISH.read_bytes().partition(b"  <page>")
    body = page + tail.partition(b"</page>")[0] + b"</page>"
    path = tmp_path / "dump"
    path.write_bytes(head + body * 5000 + b"</mediawiki>")
    read: list[int] = []
    first = next(Dump(path, progress=read.append).raw())
    assert title_of(first.data) == "Stone Wall"
    assert sum(read) < path.stat().st_size // 4


def test_a_page_that_is_too_long_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.clean.dump._LONGEST_PAGE", 1 << 20)
    head, page, tail = ENGLISH.read_bytes().partition(b"  <page>")
    long = b"<page><title>Long</title><text>" + b"a" * (3 << 20)
    path = tmp_path / "dump.xml"
    for end in (b"</text></page>", b""):
        path.write_bytes(head + long + end + page + tail)
        dump = Dump(path)
        titles = [title_of(raw.data) for raw in dump.raw()]
        assert (titles[:2], len(titles), dump.pages) == (["Long", "Stone Wall"], 8, 8)
    unclosed = b"".join(b"<page><title>%d</title>%s" % (n, b"a" * 300_000) for n in range(5))
    path.write_bytes(head + unclosed + b"</page>" + page + tail)
    titles = [title_of(raw.data) for raw in Dump(path).raw()]
    assert titles[:6] == ["0", "1", "2", "3", "4", "Stone Wall"]
    (source,) = [raw.data for raw in Dump(path).raw() if title_of(raw.data) == "0"]
    with pytest.raises(SyntaxError, match="does not end"):
        read_page(source, Dump(path).site)


@pytest.mark.parametrize("name", ["zlib", "hex", "undefined", "idna", "unicode_escape", "nonsense"])
def test_an_encoding_that_is_none_is_not_used(name: str, tmp_path: Path) -> None:
    path = tmp_path / "dump.xml"
    path.write_bytes(f'<?xml version="1.0" encoding="{name}"?>'.encode() + ENGLISH.read_bytes())
    assert len(_pages(Dump(path))) == 7


def test_namespaces_of_a_dump_in_latin_1(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml"
    path.write_bytes(_latin(ENGLISH.read_bytes()).replace(b">Category<", b">Cat\xe9gorie<"))
    dump = Dump(path)
    next(dump.raw())
    assert dump.site.hidden == ["Media", "File", "Catégorie"]
