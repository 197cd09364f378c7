"""Groups of work run in threads, within a memory, and what is finished kept.

Reading, copying, hashing and comparing leave Python's lock to others, so threads are as fast as
processes, and neither start an interpreter each nor hold PyTorch in memory more than once.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from megatron_bridge.errors import ConfigError
from megatron_bridge.journal import Journal
from megatron_bridge.sources.stored import BLOCK_BYTES
from megatron_bridge.transfer import GROUP_BYTES, Group

Progress = Callable[..., None]
"""Called as `progress(done, total, unit="tensors")`."""
Item = TypeVar("Item")
Result = TypeVar("Result")
T = TypeVar("T")

BASE_BYTES, THREAD_BYTES = 350 * 2**20, 8 * BLOCK_BYTES
"""Resident memory of PyTorch, and of each thread (both measured)."""
MOST_THREADS = 8
"""More wait for the disk, and for Python's lock between the blocks."""


class Runner:
    """Runs groups in threads, within a memory, and keeps what is finished.

    Args:
        tensors: how many there are to do, over all calls; for the progress.
        memory: a ceiling in bytes; by default half of the machine's.
        total_bytes: the model's size.
        progress: called after each group.
    """

    def __init__(
        self,
        tensors: int,
        memory: int | None = None,
        total_bytes: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self._threads = threads(memory, total_bytes)
        self._progress, self._done = progress, 0
        self._total = tensors

    def __call__(
        self,
        function: Callable[[tuple[int, Group]], Any],
        groups: Sequence[Group],
        journal: Journal | None,
        stage: str,
    ) -> list[Any]:
        """Return the function's result for each group; a journal's results are taken from it."""
        names = [f"{stage}-{number}" for number in range(len(groups))]
        results = [journal.get(name) if journal else None for name in names]
        todo = [(n, group) for n, group in enumerate(groups) if results[n] is None]
        finished = [group for n, group in enumerate(groups) if results[n] is not None]
        self._tell(*finished)
        work = kept(function, journal, stage) if journal else function
        with closing(run(work, todo, self._threads)) as running:
            for (number, group), result in zip(todo, running, strict=True):
                results[number] = result
                self._tell(group)
        return results

    def _tell(self, *done: Group) -> None:
        self._done += sum(len({piece.bound for piece in group}) for group in done)
        if self._progress is not None and done:
            self._progress(self._done, self._total, unit="tensors")


def kept(
    function: Callable[[tuple[int, T]], Result], journal: Journal, stage: str
) -> Callable[[tuple[int, T]], Result]:
    """Let a function note its result as soon as it has one, whatever else is still running."""

    def work(numbered: tuple[int, T]) -> Result:
        result = function(numbered)
        journal.note(f"{stage}-{numbered[0]}", result)
        return result

    return work


_running: list[int] = []
_lock = threading.Lock()


def run(
    function: Callable[[Item], Result], items: Sequence[Item], count: int
) -> Generator[Result, None, None]:
    """Apply a function to each item in `count` threads; yield the results in the items' order.

    Close it before what the function uses: that waits for the threads.
    """
    with _one_core_each(), ThreadPoolExecutor(count) as pool:
        yield from pool.map(function, items)


@contextmanager
def _one_core_each() -> Iterator[None]:
    """Keep PyTorch from cutting each copy up among cores that have work of their own."""
    import torch

    with _lock:  # the number is the process's, and another conversion may be running in it
        _running.append(torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            if len(_running) == 1:
                torch.set_num_threads(_running[0])
            _running.pop()


def threads(memory: int | None, total_bytes: int) -> int:
    """Return how many threads fit into `memory` bytes (None: half of what the machine has).

    Raises:
        ConfigError: not even one does.
    """
    if memory is None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    least = BASE_BYTES + THREAD_BYTES
    if memory < least:
        raise ConfigError(
            "A conversion needs more memory",
            where="memory",
            expected=f"at least {math.ceil(least / 10**6)}MB",
            got=f"{memory / 10**6:.0f}MB",
            fix="raise it, to 600MB for instance; PyTorch alone takes most of this",
        )
    useful = min(len(os.sched_getaffinity(0)), MOST_THREADS, total_bytes // GROUP_BYTES + 1)
    return min(useful, (memory - BASE_BYTES) // THREAD_BYTES)
