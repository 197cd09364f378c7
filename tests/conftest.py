"""What all tests share: models that are built, for their proof, once; a Dask cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from megatron_bridge.launch.process import tied


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "Megatron-LM's source tree, for the tests that run its tools"
    parser.addoption("--megatron-lm", type=Path, metavar="DIR", help=told)
    told = "A folder with gpt2/ (vocab.json, merges.txt) and qwen3/, for the same tests"
    parser.addoption("--tokenizers", type=Path, metavar="DIR", help=told)


@pytest.fixture(autouse=True, scope="session")
def one_build_a_model() -> Iterator[None]:
    """Every conversion builds its model on a rank of its own, which takes seconds to start."""
    from megatron_bridge import architecture

    build, known = architecture.build, {}

    def once(models: Any, stop: Any = None) -> Any:
        keys = {
            name: json.dumps([family.model_type, family.megatron_config(config), config])
            for name, (family, config) in models.items()
        }
        if new := {name: models[name] for name, key in keys.items() if key not in known}:
            known.update((keys[name], built) for name, built in build(new, stop).items())
        return {name: known[key] for name, key in keys.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(architecture, "build", once)
        yield


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither use nor fill the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


class Cluster:
    """A Dask scheduler on this machine, and workers that join it one by one."""

    def __init__(self, folder: Path) -> None:
        self.workers: list[subprocess.Popen[bytes]] = []
        self._folder = folder
        self._file = folder / "scheduler.json"
        self._scheduler = self._start("scheduler", "--port", "0")
        deadline = time.monotonic() + 60
        while not self._file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.address = json.loads(self._file.read_text())["address"]

    def join(self, threads: int = 1, **environment: str) -> None:
        """Start a worker."""
        options = ("--nthreads", str(threads), "--no-nanny")
        self.workers.append(self._start("worker", *options, **environment))

    def end(self) -> None:
        for process in (*self.workers, self._scheduler):
            process.kill()
            process.wait()

    def _start(self, role: str, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        return tied(
            [
                *(sys.executable, "-m", "dask", role, "--host", "127.0.0.1", "--no-dashboard"),
                *("--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(self._file)),
                *options,
            ],
            cwd=self._folder,
            env={"PYTHONPATH": str(Path(__file__).parents[1]), **os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@pytest.fixture
def dask_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Cluster]]:
    """What starts a cluster of so many workers, which ends with the test."""
    clusters: list[Cluster] = []

    def start(workers: int) -> Cluster:
        clusters.append(Cluster(tmp_path_factory.mktemp("dask")))
        for _ in range(workers):
            clusters[-1].join()
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.end()
