"""Fan-out by one interface: local processes, and a Dask cluster on this machine."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.core import executor
from tasks.core.errors import ConfigError
from tasks.core.executor import Executor, run

Start = Callable[[int], Any]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_SECONDS", 1)


def test_local_processes_are_the_default() -> None:
    done: list[int] = []
    assert list(run(operator.neg, range(9), 2, Executor(), done.append)) == [
        -number for number in range(9)
    ]
    assert done == list(range(1, 10))


def test_a_cluster_answers_in_order_and_reads_no_further_than_it_must(dask_cluster: Start) -> None:
    there = Executor(kind="dask", address=dask_cluster(2).address)
    read = 0

    def endless() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield read

    done: list[int] = []
    results = run(operator.neg, endless(), 1, there, done.append)
    assert [next(results) for _ in range(20)] == [-number for number in range(1, 21)]
    assert read <= 20 + 3 * 2
    assert done == list(range(1, 21))
    results.close()
    # A function's own error is the function's, in its place.
    results = run(math.sqrt, [4, 9, -1, 16], 1, there)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ValueError, match=r"math domain error|nonnegative"):
        next(results)


def test_workers_must_have_the_same_megaline(dask_cluster: Start, tmp_path: Path) -> None:
    cluster = dask_cluster(0)
    other = tmp_path / "megaline-9.9.dist-info" / "METADATA"
    other.parent.mkdir()
    other.write_text("Metadata-Version: 2.1\nName: megaline\nVersion: 9.9\n")
    cluster.join(PYTHONPATH=str(tmp_path))
    there = Executor(kind="dask", address=cluster.address)
    with pytest.raises(ConfigError, match=r"another megaline.*Got: 9\.9"):
        list(run(operator.neg, [1], 1, there))


@pytest.mark.usefixtures("impatient")
def test_a_cluster_that_is_not_there_is_told_in_a_sentence(dask_cluster: Start) -> None:
    nobody = Executor(kind="dask", address="tcp://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"No Dask scheduler answers.*127\.0\.0\.1:9"):
        list(run(operator.neg, [1], 1, nobody))
    with pytest.raises(ConfigError, match="No Dask scheduler answers"):
        list(run(operator.neg, [1], 1, Executor(kind="dask", address="no address")))
    empty = Executor(kind="dask", address=dask_cluster(0).address)
    with pytest.raises(ConfigError, match="has no workers"):
        list(run(operator.neg, [1], 1, empty))


def test_a_cluster_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match=r"megaline\[dask\]"):
        list(run(operator.neg, [1], 1, Executor(kind="dask", address="tcp://127.0.0.1:9")))


@pytest.mark.parametrize(
    "config", [{"kind": "dask"}, {"address": "tcp://a:1"}, {"kind": "threads"}]
)
def test_what_is_no_executor(config: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Executor.model_validate(config)
