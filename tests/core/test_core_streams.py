"""Of a bz2 file any number of threads read what the standard library reads, damage and all."""

from __future__ import annotations

import bz2
import random
from pathlib import Path

import pytest

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
    "a broken header behind": MANY + b"BZh!" + bytes(99),
    "zeros behind": ONE + bytes(4),
    "repeated bytes": bz2.compress(bytes(1 << 22)),
    "cut": ONE[:-70_000],
    "cut in the last bytes": MANY[:-3],
    "cut in a header": MANY + ONE[:3],
    "a broken block": _flipped(ONE, len(ONE) // 2),
    "a broken checksum": _flipped(ONE, -6),
    "a broken stream": _flipped(MANY, len(MANY) // 2),
    "a broken mark": _flipped(ONE, 6),
    "a broken header": _flipped(MANY, len(bz2.compress(TEXT[:30_000], 1)) + 1),
}


def _read(path: Path, threads: int) -> tuple[bytes, str]:
    content = b""
    try:
        for piece, _ in pieces(path, threads):
            content += piece
    except DAMAGE as error:
        return content, f"{type(error).__name__}: {error}"
    return content, ""


@pytest.mark.parametrize("name", FILES)
def test_threads_read_what_one_reads(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(FILES[name])
    content, error = _read(path, 3)
    assert _read(path, 1) == (content, error)
    assert bool(error) == ("cut" in name or "broken" in name)
    if not error:
        assert content == bz2.decompress(FILES[name])
    elif name != "a broken mark":
        assert len(content) > 29_000
        # The library hands over some of a broken block.
        assert content[:29_000] in TEXT


def test_a_file_cut_anywhere_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "file"
    two = bz2.compress(TEXT[:30_000], 1)
    for end in [*range(4, 20), *range(len(two) - 20, len(two) + 20, 3)]:
        path.write_bytes((two + two)[:end])
        content, error = _read(path, 2)
        assert (content + TEXT).startswith(TEXT[:30_000]), end
        assert bool(error) == (end != len(two)), end


def test_a_damaged_stream_is_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "file"
    second = len(bz2.compress(TEXT[:30_000], 1))
    for at in range(second, second + 14):
        path.write_bytes(_flipped(MANY, at))
        content, error = _read(path, 2)
        assert error, at
        assert content.startswith(TEXT[:30_000])


def test_a_whole_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bz2, "open", None)
    path = tmp_path / "file"
    for whole in (ONE, MANY):
        path.write_bytes(whole)
        found = list(pieces(path, 2))
        assert b"".join(piece for piece, _ in found) == TEXT
        assert all(0 <= read <= len(whole) for _, read in found)


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
