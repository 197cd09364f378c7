"""One line out of many, against a plain search through all of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tasks.core import sorted_lines


def key(line: bytes) -> int | None:
    number, kind = line.split(b" ")[:2]
    return int(number) if kind == b"own" else None


@pytest.mark.parametrize("few", [0, 1 << 6, 1 << 16])
@pytest.mark.parametrize("seed", range(20))
def test_every_line_is_found_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, few: int
) -> None:
    monkeypatch.setattr(sorted_lines, "_FEW", few)
    dice = random.Random(seed)
    share, longest = dice.random(), dice.choice((1, 30, 3000))
    numbers = sorted(dice.sample(range(1000), dice.randrange(200)))
    kinds = [b"own" if dice.random() < share else b"other" for _ in numbers]
    lines = [
        b"%d %b %b\n" % (number, kind, b"x" * dice.randrange(longest))
        for number, kind in zip(numbers, kinds, strict=True)
    ]
    path = tmp_path / "lines"
    path.write_bytes(b"".join(lines))
    wanted = {key(line): line for line in lines if key(line) is not None}
    for number in range(-1, 1001):
        found = sorted_lines.find(path, number, key)
        assert (found and found.data) == wanted.get(number)
        if found:
            assert path.read_bytes()[found.start : found.stop] == found.data


def test_few_of_many_lines_are_read(tmp_path: Path) -> None:
    path, read = tmp_path / "lines", []
    path.write_bytes(b"".join(b"%d own %b\n" % (n, b"x" * 90) for n in range(100_000)))

    def counted(line: bytes) -> int | None:
        read.append(line)
        return key(line)

    found = sorted_lines.find(path, 77_777, counted)
    assert found
    assert len(read) < 1000
