"""One small line, run once; each case gets a copy of its store to fail in."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from bad_input_cases import Place, write_dump, write_recipe
from bad_input_runner import Answer, preload, run
from pydantic import BaseModel

from flows.config import load
from flows.line import line
from megatron_bridge.launch.process import tied
from tasks.core.artifacts import Artifact
from tasks.core.stage import Stage
from tasks.core.store import Store

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="session")
def said() -> list[tuple[str, Answer]]:
    """Every answer of this folder's cases, for the tests that read them all."""
    return []


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe that works, its dump, and its store, sealed up to `to_hf`."""
    folder = tmp_path_factory.mktemp("good")
    write_dump(folder / "dump.xml")
    recipe = write_recipe(folder)
    store = Store(folder / "store")

    def submit(stage: Stage, config: BaseModel, **inputs: Artifact) -> Artifact | None:
        if stage.name in ("evaluate", "export"):
            return None
        return stage.build(store, config, inputs).artifact

    line(load(recipe), submit)
    return folder


@pytest.fixture
def place(good: Path, tmp_path: Path) -> Place:
    """A case's own folder: the good recipe, and a copy of its store made of hard links."""
    shutil.copy2(good / "recipe.yaml", tmp_path / "recipe.yaml")
    shutil.copy2(good / "dump.xml", tmp_path / "dump.xml")
    shutil.copytree(good / "store", tmp_path / "store", copy_function=os.link)
    return Place(tmp_path)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a command that finds a Prefect server."""
    home = tmp_path_factory.mktemp("prefect")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | QUIET | {"PREFECT_HOME": str(home)}
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "prefect", "server", "start", "--no-ui"]
    with (home / "log").open("w") as log:
        process = tied(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}/api"
        _wait_for(url, process, home / "log")
        found = QUIET | {"PREFECT_HOME": str(home), "PREFECT_API_URL": url}
        preload(found)
        yield found
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture
def command(server: dict[str, str], place: Place, said: list[tuple[str, Answer]]) -> object:
    """Calls `python -m MODULE ARGUMENTS` in the case's folder and keeps what it said."""

    def call(module: str, *arguments: object, **environment: str) -> Answer:
        answer = run(module, arguments, place.folder, server | environment)
        said.append((" ".join(map(str, arguments)), answer))
        return answer

    return call


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            httpx.get(f"{url}/health", timeout=5).raise_for_status()
            return
        except httpx.HTTPError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
