"""One run from the command line: Prefect's settings, its ephemeral server, and clean endings."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from flows import server
from flows.config import PipelineConfig
from flows.line import Planned, needed, plan
from tasks.core.errors import RetryableError
from tasks.core.lease import held
from tasks.core.store import Store

# Only what the user has not set; Prefect reads them when it is first imported.
_SETTINGS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "flows,tasks,megatron_bridge",
    # The server keeps the whole log; on the console the command speaks for itself.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_CLI_COLORS": "false",
}
_GRACE_SECONDS = 5.0


def run(
    config: PipelineConfig, root: str | None, until: str | None, force: Sequence[str]
) -> list[dict[str, Any]]:
    """Run the line and wait for it; returns one row a stage (`flows.reports.row`).

    Raises:
        ConfigError, InputError: see `flows.line.plan`.
        RetryableError: the Prefect server named by `PREFECT_API_URL` does not answer.
    """
    # A wrong recipe is refused here, before a server starts.
    planned = plan(config, Store(root), until)
    if not os.environ.get("PREFECT_API_URL"):
        rows = None if force else _all_sealed(config, Store(root), planned)
        if rows is not None:
            return rows
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    own = _own_server()
    return _in_thread(lambda: _flow(config, root, until, force, own))


def _own_server() -> str | None:
    """Start a server where neither the environment nor Prefect's profile names one."""
    from prefect.context import refresh_global_settings_context
    from prefect.settings import get_current_settings

    if get_current_settings().api.url:
        return None
    os.environ["PREFECT_API_URL"] = url = server.start()
    refresh_global_settings_context()
    return url


def _all_sealed(
    config: PipelineConfig, store: Store, planned: dict[str, Planned]
) -> list[dict[str, Any]] | None:
    """The rows of a line with nothing left to do, for which no server need be started."""
    from flows import reports

    artifacts = {name: found.artifact for name, found in planned.items()}
    if any(found is None or store.unfinished(planned[n].address) for n, found in artifacts.items()):
        return None
    return [reports.told(reports.reused(name, artifacts.get(name))) for name in needed(config)]


def _flow(
    config: PipelineConfig,
    root: str | None,
    until: str | None,
    force: Sequence[str],
    own: str | None,
) -> list[dict[str, Any]]:
    import httpx

    from flows.pipeline import pipeline

    try:
        if own is not None:
            server.wait(own)
        state: Any = pipeline(config, root, until, list(force), return_state=True)
    except (httpx.TransportError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "API" not in str(error):
            raise
        raise RetryableError(
            "The Prefect server does not answer",
            where=os.environ.get("PREFECT_API_URL", "the server of Prefect's profile"), got=error,
            expected="a running Prefect 3.9 server",
            fix="start it, or unset PREFECT_API_URL to run without one",
        ) from error  # fmt: skip
    rows = state.result(raise_on_failure=False)
    if isinstance(rows, BaseException):
        raise rows
    return list(rows)


def _in_thread(work: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Run away from the main thread, where Prefect would install signal handlers of its own."""
    results: list[list[dict[str, Any]]] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, name="flow", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
    if errors:
        raise errors[0]
    return results[0]


def _stop(number: int, _: FrameType | None) -> NoReturn:
    """End at once: nothing is sealed any more, then children, leases and this process go."""
    signal.signal(number, signal.SIG_IGN)
    leases = held()
    for lease in leases:
        # A stage must not take its killed children's half work for the whole.
        lease.revoke()
    _end_children()
    for lease in leases:
        lease.release()
    sys.stderr.write(f"\nstopped by {signal.Signals(number).name}; what is sealed will be reused\n")
    sys.stderr.flush()
    os._exit(128 + number)


def _end_children() -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + _GRACE_SECONDS
        while _children() and time.monotonic() < deadline:
            time.sleep(0.05)


def _children() -> list[int]:
    """The pids of this process's own living children (Linux; elsewhere they end by their pipes)."""
    pids: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += map(int, task.read_text().split())
    return [pid for pid in pids if not _is_zombie(pid)]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
