"""What users get wrong, through the real command line: one paragraph, and the store as it was."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bad_input_cases import BRIDGE, MEGALINE, TABLE, Case, Place
from bad_input_runner import Answer

from flows.config import load
from tasks.core import sources
from tasks.core.errors import RetryableError
from tasks.core.store import Store
from tasks.ingest.task import ingest

REPOSITORY = Path(__file__).parents[2]
Command = Callable[..., Answer]

PARTS = ("Where: ", "Expected: ", "Got: ", "What to do: ")


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name.replace(" ", "-"))
def test_bad_input(case: Case, place: Place, command: Command) -> None:
    arguments = case.prepare(place)
    before = listing(place)
    answer = command(case.module, *arguments)
    assert_told(answer, case.code, [text.format(folder=place.folder) for text in case.says])
    assert unsealed(place, before) == []
    assert answer.left == []
    if case.module == BRIDGE:
        assert not (place.folder / "out").exists()


def assert_told(answer: Answer, code: int, says: list[str]) -> None:
    """One paragraph with all its parts on standard error."""
    assert answer.code == code, answer.err
    assert "Traceback" not in answer.out + answer.err
    paragraphs = [text for text in answer.err.split("\n") if text.strip()]
    assert len(paragraphs) == 1, answer.err
    for part in (*PARTS, *says):
        assert part in answer.err, answer.err
    assert not re.search(r"Traceback|\bobject at 0x", answer.err)


def listing(place: Place) -> set[str]:
    """Every file of the store but the cache of digests."""
    return {
        str(path.relative_to(place.store))
        for path in place.store.rglob("*")
        if path.is_file() and path.name not in ("digests.json", ".lock")
    }


def unsealed(place: Place, before: set[str]) -> list[str]:
    """The files that were lost, and the new ones that belong to no sealed output."""
    now = listing(place)
    records = {str(Path(name).parent) for name in now if name.endswith("/artifact.json")}
    stray = [name for name in now - before if not any(name.startswith(f"{r}/") for r in records)]
    return sorted([*stray, *(before - now)])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts small disks of their own; skipped where this process may not."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            pytest.skip(f"no disk of a few kilobytes can be had here: {error}")
        if done.returncode:
            pytest.skip(f"no disk of a few kilobytes can be had here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("stage", ["ingest", "tokens", "to_megatron", "train", "to_hf"])
def test_a_disk_that_fills_up(
    stage: str, place: Place, command: Command, disk: Callable[[str], Path]
) -> None:
    small = disk("size=16k")
    before = listing(place)
    answer = command(
        MEGALINE, *place.run(until=stage), "--force", stage, MEGALINE_SCRATCH=str(small)
    )
    assert_told(answer, 3, ["The disk is full", "free some space"])
    assert unsealed(place, before) == []
    assert answer.left == []


def test_a_full_disk_without_mounts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where nothing can be mounted: the system's answer, given by hand."""

    def full(*_: object, **__: object) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sources, "copy", full)
    before = listing(place)
    with pytest.raises(RetryableError, match="The disk is full"):
        ingest.build(Store(place.store), load(place.recipe).ingest, force=True)
    assert unsealed(place, before) == []


def test_a_store_that_cannot_be_written(
    place: Place, command: Command, disk: Callable[[str], Path]
) -> None:
    locked = disk("ro")
    answer = command(MEGALINE, "run", place.recipe, "--until", "ingest", "--root", locked)
    assert_told(answer, 3, ["Read-only file system", str(locked)])
    assert list(locked.iterdir()) == []


def test_a_server_that_does_not_answer(place: Place, said: list[tuple[str, Answer]]) -> None:
    words = [*map(str, place.run(until="ingest")), "--force", "ingest"]
    environment = os.environ | {"PREFECT_API_URL": "http://127.0.0.1:9/api"}
    done = subprocess.run(
        [sys.executable, "-m", MEGALINE, *words], capture_output=True, text=True, timeout=120,
        env=environment | {"PYTHONPATH": str(REPOSITORY)}, cwd=place.folder, check=False,
    )  # fmt: skip
    answer = Answer(done.returncode, done.stdout, done.stderr, [])
    said.append((" ".join(words), answer))
    assert_told(answer, 3, ["does not answer", "127.0.0.1:9", "PREFECT_API_URL"])


def test_no_answer_holds_a_traceback(said: list[tuple[str, Answer]]) -> None:
    if not said:
        pytest.skip("no case ran before")
    assert [words for words, answer in said if "Traceback" in answer.out + answer.err] == []


def test_a_stray_file_would_be_seen(place: Place) -> None:
    before = listing(place)
    (place.store / "ingest" / "stray").write_text("x")
    (place.sealed("model") / "config.json").unlink()
    assert len(unsealed(place, before)) == 2


def test_the_good_recipe_is_good(place: Place, command: Command) -> None:
    answer = command(MEGALINE, *place.run(until="to_hf"), "--json")
    assert answer.code == 0, answer.err
    states = {row["stage"]: row["state"] for row in json.loads(answer.out)["stages"]}
    assert {states.pop("evaluate"), states.pop("export")} == {"NotReached"}
    assert set(states.values()) == {"Reused"}
