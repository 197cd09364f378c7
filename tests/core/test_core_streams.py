"""Of a bz2 file any number of threads read what the standard library reads, damage and all."""

from __future__ import annotations

import bz2
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.core import bz2_blocks
from tasks.core.streams import DAMAGE, pieces

# Six blocks at the lowest level, and more than one byte's worth of shifts between them.
TEXT = random.Random(1).randbytes(250_000).hex().encode()
ONE = bz2.compress(TEXT, 1)
MANY = b"".join(bz2.compress(TEXT[at : at + 30_000], 1) for at in range(0, len(TEXT), 30_000))


def _flipped(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


FILES = {
    "one stream": ONE,
    "many streams": MANY,
    "other levels": bz2.compress(TEXT * 2, 9) + bz2.compress(TEXT, 3),
    "an empty stream": MANY + bz2.compress(b"") + MANY,
    "an empty stream first": bz2.compress(b"") + ONE,
    "nothing": bz2.compress(b""),
    "what is no stream behind": MANY + b"BZh!" + bytes(99),
    "zeros behind": ONE + bytes(4),
    "repeated bytes": bz2.compress(bytes(1 << 22)),
    "cut": ONE[:-70_000],
    "cut in the last bytes": MANY[:-3],
    "cut in a header": MANY + ONE[:3],
    "a broken block": _flipped(ONE, len(ONE) // 2),
    "a broken checksum": _flipped(ONE, -6),
    "a broken stream": _flipped(MANY, len(MANY) // 2),
    "a broken mark": _flipped(ONE, 6),
    "a header that is none": _flipped(MANY, len(bz2.compress(TEXT[:30_000], 1)) + 1),
}


def _read(path: Path, threads: int) -> tuple[bytes, str]:
    content = b""
    try:
        for piece, _ in pieces(path, threads):
            content += piece
    except DAMAGE as error:
        return content, f"{type(error).__name__}: {error}"
    return content, ""


def _known(path: Path) -> tuple[bytes, str]:
    content = b""
    try:
        with bz2.open(path) as file:
            while piece := file.read1(1 << 16):
                content += piece
    except DAMAGE as error:
        return content, f"{type(error).__name__}: {error}"
    return content, ""


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("piece", [1 << 20, 5_000])
def test_threads_read_what_one_reads(
    name: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bz2_blocks, "_PIECE", piece)
    path = tmp_path / "file"
    path.write_bytes(FILES[name])
    content, error = _read(path, 3)
    assert _read(path, 1) == (content, error)
    known, damage = _known(path)
    assert error == damage
    assert bool(error) == ("cut" in name or "broken" in name)
    if error:
        # The library drops whole blocks before the damage, and hands over some of a broken one.
        assert content in TEXT * 2
        assert (len(content) > 100_000) == (name != "a broken mark")
    else:
        assert content == known


def test_a_whole_file_is_read_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for whole in (ONE, MANY):
        path.write_bytes(whole)
        with open(path, "rb") as raw:
            found, rest = _contents(bz2_blocks.contents(raw, 2))
        assert b"".join(found) == TEXT
        assert len(found) > 4
        assert rest is None


def test_what_looks_like_a_mark_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks: Callable[[bytes, int], Iterator[int]] = bz2_blocks._marks

    def more(held: bytes, scanned: int) -> Iterator[int]:
        for place in marks(held, scanned):
            yield place
            yield place + 777

    monkeypatch.setattr(bz2_blocks, "_marks", more)
    path = tmp_path / "file"
    path.write_bytes(ONE)
    assert _read(path, 2) == (TEXT, "")


def test_a_block_that_holds_too_much_is_read_as_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bz2.compress(bytes(1 << 22)) + MANY)
    monkeypatch.setattr(bz2_blocks, "_LARGEST_CONTENT", 1 << 20)
    with open(path, "rb") as raw:
        assert _contents(bz2_blocks.contents(raw, 2)) == ([], bz2_blocks.Rest(0, 0))
    assert _read(path, 2) == (bytes(1 << 22) + TEXT, "")


def _contents(blocks: Iterator[tuple[bytes, int]]) -> tuple[list[bytes], object]:
    found = []
    while True:
        try:
            found.append(next(blocks)[0])
        except StopIteration as end:
            return found, end.value


def test_what_other_programs_write_as_zst(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "x.zst"
    # As pzstd does: in front of each frame one to be skipped, with the frame's size.
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    path.write_bytes(b"".join(skipped + zstandard.compress(part) for part in (b"one ", b"two")))
    assert b"".join(piece for piece, _ in pieces(path)) == b"one two"
    # As `zstd --long=31` does.
    long = zstandard.ZstdCompressionParameters(window_log=31, hash_log=6, chain_log=6)
    frame = zstandard.ZstdCompressor(compression_params=long).compressobj()
    path.write_bytes(frame.compress(b"three") + frame.flush())
    assert b"".join(piece for piece, _ in pieces(path)) == b"three"
