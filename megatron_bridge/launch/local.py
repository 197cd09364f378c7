"""Ranks on this machine, under torchrun."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron_bridge import errors
from megatron_bridge.errors import PipelineError, RetryableError
from megatron_bridge.launch import process
from megatron_bridge.launch.base import failure_file

_TICK = 0.4
_LINES = 12
_REPORT_BYTES = 1 << 16
_ALONE = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}


class LocalLauncher:
    """Starts torchrun here, over loopback; nothing it starts outlives this process.

    Args:
        alone: start the only rank without torchrun, which takes seconds to come up.
    """

    def __init__(self, alone: bool = False) -> None:
        self._alone = alone

    def run(
        self,
        module: str,
        spec: Path,
        world_size: int,
        on_tick: Callable[[], None] | None = None,
    ) -> None:
        """Run a job; see `Launcher.run`. Each rank's output lies in `ranks/` beside the spec."""
        output = spec.parent / "ranks"
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        for old in spec.parent.glob(f"{spec.stem}.rank*.failed.json"):
            old.unlink()
        launcher_log = output / "torchrun.log"
        with launcher_log.open("wb") as log:
            rank = [sys.executable, "-u", "-m", module, str(spec)]
            child = process.tied(
                rank if self._alone else _torchrun(rank, world_size, output),
                env=_environment(world_size) | (_ALONE if self._alone else {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                while child.poll() is None:
                    if on_tick is not None:
                        on_tick()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(_TICK)
            finally:
                # torchrun ends its ranks on SIGTERM; they also die with it.
                if child.poll() is None:
                    child.terminate()
                    child.wait()
        if on_tick is not None:
            on_tick()
        if child.returncode != 0:
            raise _failure(module, spec, world_size, output)


def _torchrun(rank: list[str], world_size: int, output: Path) -> list[str]:
    options = [
        # A store of its own on a free port, which torchrun and the ranks share.
        "--standalone",
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={world_size}",
        "--max-restarts=0",
        f"--log-dir={output}",
        "--redirects=3",
    ]
    # Wrapped, ranks die with torchrun from their first moment, not only once they have imported
    # torch: torchrun starts them in sessions of their own.
    return [
        sys.executable, "-m", "torch.distributed.run", *options, "--no-python",
        *process.wrap(rank),
    ]  # fmt: skip


def _environment(world_size: int) -> dict[str, str]:
    package = Path(__file__).resolve().parents[2]
    inherited = os.environ.get("PYTHONPATH")
    mac = sys.platform == "darwin"
    cores = (os.cpu_count() or 1) if mac else len(os.sched_getaffinity(0))
    return {
        "OMP_NUM_THREADS": str(max(1, cores // world_size)),
        **os.environ,
        # The ranks are on one machine: keep their traffic off the network.
        "GLOO_SOCKET_IFNAME": "lo0" if mac else "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        # Megatron's sequence and tensor parallelism rely on one order of kernels and collectives.
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "PYTHONPATH": f"{package}{os.pathsep}{inherited}" if inherited else str(package),
    }


def _failure(module: str, spec: Path, world_size: int, output: Path) -> PipelineError:
    """Return the error that a rank reported; else say which rank was lost, and its last words."""
    report = (output / "torchrun.log").read_text(encoding="utf-8", errors="replace")
    killed = [int(code) for code in re.findall(r"exitcode\s*:\s*(-\d+)", report)]
    reports = _reports(spec, world_size)
    if not reports and shutil.disk_usage(output).free < _REPORT_BYTES:
        # The ranks could not even say so.
        return RetryableError(
            "A rank was lost",
            where=output,
            expected="room for what the ranks write",
            got=os.strerror(errno.ENOSPC),
            fix="free some space and run again",
        )
    for _, failed in reports:
        if failed["told"]:
            kind: type[PipelineError] = getattr(errors, failed["error"], PipelineError)
            return kind(failed["message"])
    # torchrun ends the other ranks with SIGTERM (-15) once one is gone.
    if any(code != -15 for code in killed) or not reports:
        return RetryableError(
            "A rank was lost",
            where=f"{module}, {world_size} ranks",
            expected="ranks that run to the end",
            got=_last_words(output, report),
            fix="run again: training goes on from its last checkpoint; if it happens again, "
            f"look for a lack of memory and into {output}",
        )
    rank, failed = reports[0]
    return PipelineError(
        f"Rank {rank} failed",
        where=f"{module}, output in {output}",
        got=f"{failed['error']}: {failed['message']}\n"
        + "\n".join(failed["traceback"].splitlines()[-_LINES:]),
        fix=f"repeat by hand: torchrun --nproc-per-node {world_size} -m {module} {spec}",
    )


def _reports(spec: Path, world_size: int) -> list[tuple[int, dict[str, Any]]]:
    """What the ranks said of their failures; a report that a full disk cut short is none."""
    reports = []
    for rank in range(world_size):
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            reports.append((rank, json.loads(failure_file(spec, rank).read_text("utf-8"))))
    return reports


def _last_words(output: Path, report: str) -> str:
    logs = sorted(output.glob("**/stderr.log"))
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in logs]
    spoken = next((text for text in texts if text.strip()), report)
    return "\n" + "\n".join(spoken.splitlines()[-_LINES:])
