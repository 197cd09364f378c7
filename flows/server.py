"""Prefect's ephemeral server: a child that is tied to the command from its first moment.

Prefect can start one by itself, but that one outlives a command that is killed.
Run as a program (`python -m flows.server DESCRIPTOR`), it serves on the socket it is given.
"""

from __future__ import annotations

import atexit
import socket
import subprocess
import sys

from megatron_bridge.launch.process import tied
from tasks.core.errors import RetryableError

_GRACE_SECONDS = 5.0


def start() -> str:
    """Start the server and return its API's URL; what asks it is answered once it is up.

    The socket listens already, so that no question is refused and no port is lost to another.
    To be called in the main thread (see `tied`); the server ends with this process.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = tied(
            [sys.executable, "-m", "flows.server", str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            # A Ctrl-C is for the command alone: it ends the server, which would print a traceback.
            start_new_session=True,
        )
        host, port = listener.getsockname()
    # Registered before Prefect's own, and so called after them: they still tell it the last lines.
    atexit.register(_stop, process)
    return f"http://{host}:{port}/api"


def wait(url: str) -> None:
    """Wait until the server answers.

    Raises:
        RetryableError: it ended, or is not up in time.
    """
    import httpx
    from prefect.settings import get_current_settings

    timeout = get_current_settings().server.ephemeral.startup_timeout_seconds
    try:
        httpx.get(f"{url}/health", timeout=timeout, trust_env=False).raise_for_status()
    except httpx.HTTPError as error:
        raise RetryableError(
            "Prefect's ephemeral server does not start", where=url,
            expected=f"an answer within {timeout} seconds", got=error or type(error).__name__,
            fix="run again; on a slow machine raise "
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS, or name a running server in "
            "PREFECT_API_URL",
        ) from error  # fmt: skip


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _serve(descriptor: int) -> None:
    import uvicorn
    from prefect.server.api.server import create_app

    app = create_app(ephemeral=True, final=True)
    config = uvicorn.Config(app, log_level="error", lifespan="on")
    uvicorn.Server(config).run([socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
