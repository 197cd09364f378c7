"""Child processes that do not outlive their parent.

Run as a program (`process.py COMMAND…`), it ties itself to its parent and becomes the command. That
is what `tied` starts: to run Python between fork and exec, as `preexec_fn` does, can deadlock in a
process with threads, and Prefect's has many. A tied process that starts others by `wrap` ties them
to itself, from their first moment.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1
_PARENT = "MEGALINE_PARENT"
"""Environment variable with the id of the process that starts a wrapped command."""


def tied(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a child that the kernel kills when this process dies, even by `kill -9`.

    The kernel watches the *thread* that started the child: start and wait in one thread.

    Args:
        command: program and arguments.
        options: further arguments of `subprocess.Popen`.
    """
    environment = {**(options.pop("env", None) or os.environ), _PARENT: str(os.getpid())}
    return subprocess.Popen(wrap(command), env=environment, **options)


def wrap(command: Sequence[str]) -> list[str]:
    """Return `command` so that it first ties itself to the tied process that starts it."""
    return [sys.executable, __file__, *command]


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent dies; does nothing outside Linux.

    The wish survives `exec`, but not `fork`.

    Args:
        parent: the parent's id; when it has died already, this process ends at once.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    die_with_parent(int(os.environ[_PARENT]))
    os.environ[_PARENT] = str(os.getpid())  # exec keeps the id
    os.execvp(sys.argv[1], sys.argv[1:])
