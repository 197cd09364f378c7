"""The flow on a real Prefect server on loopback: retries, reuse, failure, signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from megatron_bridge.launch.process import tied

REPOSITORY = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("flow_driver.py")
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PYTHONPATH": str(REPOSITORY),
}


class Server:
    """A Prefect server and what it knows."""

    def __init__(self, url: str, environment: dict[str, str]) -> None:
        self.url = url
        self.environment = environment | {"PREFECT_API_URL": url}

    def ask(self, path: str, **body: Any) -> Any:
        answer = httpx.post(f"{self.url}/{path}", json=body, timeout=30)
        answer.raise_for_status()
        return answer.json()

    def task_runs(self, flow_run_id: str) -> dict[str, dict[str, Any]]:
        found = self.ask(
            "task_runs/filter",
            flow_runs={"id": {"any_": [flow_run_id]}},
            sort="EXPECTED_START_TIME_ASC",
        )
        return {run["name"]: run for run in found}

    def run(self, root: Path, mode: str) -> dict[str, Any]:
        run = subprocess.run(
            [sys.executable, str(DRIVER), str(root), mode],
            env=self.environment, capture_output=True, text=True, timeout=120, cwd=root,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        return dict(json.loads(run.stdout))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("prefect")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | QUIET | {"PREFECT_HOME": str(home), "PREFECT_UI_ENABLED": "0"}
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "prefect", "server", "start", "--no-ui"]
    with (home / "log").open("w") as log:
        process = tied(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}/api"
    deadline = time.monotonic() + 120
    try:
        while True:
            try:
                httpx.get(f"{url}/health", timeout=5).raise_for_status()
                break
            except httpx.HTTPError:
                assert process.poll() is None and time.monotonic() < deadline, "no server"  # noqa: PT018
                time.sleep(0.2)
        yield Server(url, environment)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def settled(server: Server, flow_run_id: str, count: int) -> dict[str, dict[str, Any]]:
    """The task runs, once the server has written down all of their final states."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        runs = server.task_runs(flow_run_id)
        if len(runs) == count and all(run["state_type"] != "RUNNING" for run in runs.values()):
            return runs
        time.sleep(0.2)
    return server.task_runs(flow_run_id)


def test_two_io_errors_then_completed_then_reused(server: Server, tmp_path: Path) -> None:
    first = server.run(tmp_path, "flaky")
    assert first["state"] == "COMPLETED"
    assert [row["state"] for row in first["rows"]] == ["Built"] * 3
    assert first["rows"][1]["metrics"] == {"tries": 3}
    runs = settled(server, first["flow_run_id"], 3)
    assert sorted(runs) == ["last", "middle", "raw"]
    assert {run["state_type"] for run in runs.values()} == {"COMPLETED"}
    assert (runs["middle"]["run_count"], runs["raw"]["run_count"]) == (3, 1)

    shown = server.ask("artifacts/filter", flow_runs={"id": {"any_": [first["flow_run_id"]]}})
    assert {artifact["key"] for artifact in shown} >= {
        "raw-metrics", "middle-metrics", "last-metrics", "middle-progress", "line",
    }  # fmt: skip

    again = server.run(tmp_path, "flaky")
    assert [row["state"] for row in again["rows"]] == ["Reused"] * 3
    assert {run["state_name"] for run in settled(server, again["flow_run_id"], 3).values()} == {
        "Reused"
    }


def test_config_error_is_not_retried_and_the_rest_is_reused(server: Server, tmp_path: Path) -> None:
    failed = server.run(tmp_path, "config")
    assert failed["state"] == "FAILED"
    assert [row["state"] for row in failed["rows"]] == ["Built", "Failed", "NotReached"]
    assert failed["rows"][1]["exit_code"] == 2
    assert "A wrong value. Where: middle.x." in failed["rows"][1]["error"]
    runs = settled(server, failed["flow_run_id"], 3)
    assert (runs["middle"]["state_type"], runs["middle"]["run_count"]) == ("FAILED", 1)
    assert server.ask("flow_runs/filter", flow_runs={"id": {"any_": [failed["flow_run_id"]]}})[0][
        "state_type"
    ] == "FAILED"  # fmt: skip

    fixed = server.run(tmp_path, "fine")
    assert [row["state"] for row in fixed["rows"]] == ["Reused", "Built", "Built"]


def test_deployments_load(server: Server) -> None:
    for command in (
        ["work-pool", "create", "megaline", "--type", "process"],
        ["--no-prompt", "deploy", "--all", "--prefect-file", "deploy/prefect.yaml"],
    ):
        run = subprocess.run(
            [sys.executable, "-m", "prefect", *command],
            env=server.environment, capture_output=True, text=True, timeout=120, cwd=REPOSITORY,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
    found = {one["name"]: one for one in server.ask("deployments/filter")}
    assert {
        name: (
            one["global_concurrency_limit"]["limit"],
            one["concurrency_options"]["collision_strategy"],
            [schedule["schedule"]["cron"] for schedule in one["schedules"]],
        )
        for name, one in found.items()
    } == {"manual": (1, "ENQUEUE", []), "nightly": (1, "CANCEL_NEW", ["0 2 * * *"])}
    form = found["manual"]["parameter_openapi_schema"]["definitions"]
    assert form["TrainStage"]["properties"]["steps"]["description"] == "Optimizer steps"
    assert form["TrainStage"]["properties"]["decay"]["enum"] == ["constant", "linear", "cosine"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_everything(server: Server, tmp_path: Path, number: signal.Signals) -> None:
    # No server is named here: the run has an ephemeral one of its own, which must end as well.
    environment = server.environment | {"PREFECT_HOME": str(tmp_path / "home")}
    del environment["PREFECT_API_URL"]
    process = tied([sys.executable, str(DRIVER), str(tmp_path), "sleep"], env=environment)
    marker, deadline = tmp_path / "child.pid", time.monotonic() + 120
    while not (marker.exists() and marker.read_text()) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.1)
    family = descendants(process.pid)
    assert int(marker.read_text()) in family
    assert len(family) >= 2
    lease = tmp_path / "middle" / "x"
    assert list(lease.glob("*/lease.json"))
    process.send_signal(number)
    code = process.wait(30)
    assert code == (-9 if number == signal.SIGKILL else 128 + number)
    deadline = time.monotonic() + 15
    while any(map(alive, family)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [pid for pid in family if alive(pid)] == []
    assert list(lease.glob("*/artifact.json")) == []
    if number != signal.SIGKILL:
        assert list(lease.glob("*/lease.json")) == []


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_a_kill_while_the_ephemeral_server_starts(
    server: Server, tmp_path: Path, seconds: float
) -> None:
    """From the moment that its process is there, and before any stage runs."""
    mark = f"MEGALINE_TEST_MARK={uuid.uuid4().hex}"
    environment = server.environment | {"PREFECT_HOME": str(tmp_path / "home")}
    del environment["PREFECT_API_URL"]
    process = tied(
        [sys.executable, str(DRIVER), str(tmp_path), "sleep"],
        env=environment | dict([mark.split("=")]),
    )
    deadline = time.monotonic() + 120
    while len(marked(mark)) < 2 and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.005)
    time.sleep(seconds)
    family = marked(mark)
    assert len(family) >= 2, "no server was started"
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = marked(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
    assert not (tmp_path / "raw").exists()


def marked(mark: str) -> list[int]:
    """The living processes that carry a mark in their environment."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in file.read_bytes():
                found.append(int(file.parent.name))
    return found


def descendants(pid: int) -> list[int]:
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            found += [child, *descendants(child)]
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
