"""Fan-out over local processes: results in the order of the items, memory bounded."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from megatron_bridge.errors import RetryableError
from megatron_bridge.launch.process import die_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")

# Two waiting items a worker keep it busy while the parent writes; more would only take memory.
_AHEAD = 3


def run(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Result]:
    """Apply a function to each item, and yield the results in the order of the items.

    Workers are fresh interpreters (`spawn`: no locks or threads are inherited) that the kernel
    ends when the thread that iterates ends; so iterate in one thread. At most three items a
    worker are in flight, so `items` may be an endless generator.

    Args:
        function: a module-level function (or a `functools.partial` of one).
        items: read lazily, in the calling thread.
        workers: number of processes; with 1 the function runs in this process.
        progress: called with the number of items done, after each.

    Raises:
        RetryableError: a worker died (killed, or out of memory).
        Exception: whatever the function raised first, in the order of the items.
    """
    results = map(function, items) if workers == 1 else _pooled(function, items, workers)
    for done, result in enumerate(results, 1):
        if progress:
            progress(done)
        yield result


def in_order(
    executor: Executor,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
) -> Iterator[Result]:
    """Apply a function to each item on an executor that is there, and yield results in order.

    At most three items a worker are in flight.

    Args:
        executor: local processes, a cluster: whatever has the interface of `concurrent.futures`.
        function: one that the executor can send.
        items: read lazily, in the calling thread.
        workers: how many items the executor works on at a time.
    """
    waiting: deque[Future[Result]] = deque()
    for item in items:
        waiting.append(executor.submit(function, item))
        if len(waiting) >= _AHEAD * workers:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _pooled(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Iterator[Result]:
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=die_with_parent,
        initargs=(os.getpid(),),
    )
    try:
        yield from in_order(pool, function, items, workers)
    except BrokenProcessPool as error:
        raise RetryableError(
            "A worker process died", where=f"a pool of {workers} workers",
            expected="a result for each item", got=error,
            fix="run again; if it was killed for memory, use fewer workers",
        ) from error  # fmt: skip
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
