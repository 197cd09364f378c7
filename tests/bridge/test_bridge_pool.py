"""Fan-out: order, errors, bounded memory, and no child that outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_bridge.launch.pool import run
from tasks.core.errors import InputError, RetryableError


def _slow_first(item: int) -> tuple[int, int]:
    if item == 0:
        time.sleep(0.3)
    return item, os.getpid()


def _fails_at_three(item: int) -> int:
    if item == 3:
        raise InputError("Three is bad", where="here", got=3)
    return item


def _dies_at_three(item: int) -> int:
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def _square(item: int) -> int:
    return item * item


def test_results_come_in_the_order_of_the_items() -> None:
    done: list[int] = []
    results = list(run(_slow_first, range(12), 2, done.append))
    assert [item for item, _ in results] == list(range(12))
    assert os.getpid() not in {pid for _, pid in results}
    assert done == list(range(1, 13))


def test_one_worker_runs_inline() -> None:
    assert list(run(lambda item: (item, os.getpid()), [1, 2], 1)) == [
        (1, os.getpid()), (2, os.getpid()),
    ]  # fmt: skip


def test_items_are_read_no_faster_than_they_are_worked_on() -> None:
    read = 0

    def endless() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield read

    results = run(_square, endless(), 2)
    assert [next(results) for _ in range(5)] == [1, 4, 9, 16, 25]
    assert read <= 5 + 3 * 2
    results.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_raised_in_its_place(workers: int) -> None:
    results = run(_fails_at_three, range(9), workers)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(InputError, match=r"Three is bad\. Where: here\. Got: 3\."):
        next(results)


def test_a_dead_worker_may_be_tried_again() -> None:
    with pytest.raises(RetryableError, match="A worker process died"):
        list(run(_dies_at_three, range(9), 2))


SCRIPT = """
import os, sys, time
from pathlib import Path
from megatron_bridge.launch.pool import run

def work(item):
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    list(run(work, range(4), 2))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux")
def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, script, pids],
        env={**os.environ, "PYTHONPATH": str(root)},
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(lambda: len(list(pids.iterdir())) == 2)
    finally:
        parent.kill()
        parent.wait()
    children = [int(path.name) for path in pids.iterdir()]
    assert len(children) == 2
    _wait_for(lambda: not any(_alive(pid) for pid in children))


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _wait_for(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
