"""Child processes that do not outlive their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1


def tied(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a child that the kernel kills when this process dies, even by `kill -9`.

    The kernel watches the *thread* that started the child: start and wait in one thread.

    Args:
        command: program and arguments.
        options: further arguments of `subprocess.Popen`.
    """
    parent = os.getpid()
    return subprocess.Popen(command, preexec_fn=lambda: die_with_parent(parent), **options)


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent dies; does nothing outside Linux.

    Args:
        parent: the parent's id; when it has died already, this process ends at once.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
