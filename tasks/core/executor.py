"""Fan-out over documents and shards: local processes, or a Dask cluster by the same interface."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from megatron_bridge.launch import pool
from tasks.core.errors import ConfigError, RetryableError

Item = TypeVar("Item")
Result = TypeVar("Result")

_PACKAGE = "megaline"
_SECONDS = 30


class Executor(BaseModel):
    """Where a stage's pieces of work are done."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["processes", "dask"] = Field(
        "processes", description="Processes of this machine, or workers of a Dask cluster"
    )
    address: str | None = Field(
        None, description="The Dask scheduler's, such as tcp://10.0.0.1:8786"
    )

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Executor:
        if (self.kind == "dask") != (self.address is not None):
            raise ValueError("kind dask needs the scheduler's address, and no other kind takes one")
        return self


def run(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
    executor: Executor,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Result]:
    """Apply a function to each item, and yield the results in the order of the items.

    At most three items a worker are in flight, so `items` may be an endless generator. On a
    cluster, what a lost worker had in hand is done again by another, once there is one.

    Args:
        function: a module-level function (or a `functools.partial` of one).
        items: read lazily, in the calling thread.
        workers: number of local processes; a cluster has as many as have joined it.
        executor: where.
        progress: called with the number of items done, after each.

    Raises:
        ConfigError: there is no such cluster, or megaline is not what its workers have.
        RetryableError: workers died (killed, or out of memory), or the scheduler did.
        Exception: whatever the function raised first, in the order of the items.
    """
    if executor.address is None:
        yield from pool.run(function, items, workers, progress)
        return
    with _client(executor.address) as client:
        _require_same_code(client)
        threads = sum(client.nthreads().values())
        try:
            results = pool.in_order(client.get_executor(pure=False), function, items, threads)
            for done, result in enumerate(results, 1):
                if progress:
                    progress(done)
                yield result
        except _lost_workers() as error:
            raise RetryableError(
                "The cluster lost its scheduler, or too many workers", where=executor.address,
                expected="a result for each item", got=f"{type(error).__name__}: {error}",
                fix="run again; if workers were killed for memory, give each more of it",
            ) from error  # fmt: skip


@contextmanager
def _client(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError as error:
        raise ConfigError(
            "A Dask cluster cannot be asked from here", where=address,
            expected="the package `distributed`", got="not installed",
            fix=f"pip install '{_PACKAGE}[dask]', or leave the executor out",
        ) from error  # fmt: skip
    try:
        # `distributed` has no types.
        client: Any = Client(address, timeout=_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise ConfigError(
            "No Dask scheduler answers", where=address, expected="the address of a scheduler",
            got=error, fix="start `dask scheduler`, and name the address that it prints",
        ) from error  # fmt: skip
    # Not waited for: a task that was running is nobody's when its client goes.
    with client:
        yield client


def _require_same_code(client: Any) -> None:
    """What the function was pickled with must be what unpickles it."""
    address = client.scheduler.address
    try:
        client.wait_for_workers(1, timeout=_SECONDS)
    except TimeoutError as error:
        raise ConfigError(
            "The Dask cluster has no workers", where=address, expected="at least one",
            got=f"none in {_SECONDS} s", fix=f"start `dask worker {address}`",
        ) from error  # fmt: skip
    mine = importlib.metadata.version(_PACKAGE)
    # A function of the standard library reaches also a worker that has nothing else.
    found = client.run(importlib.metadata.version, _PACKAGE, on_error="return")
    for worker, version in found.items():
        if version != mine:
            missing = isinstance(version, importlib.metadata.PackageNotFoundError)
            raise ConfigError(
                "A worker of the Dask cluster has another megaline", where=worker,
                expected=f"{_PACKAGE} {mine}, as here", got="none" if missing else version,
                fix=f"pip install {_PACKAGE}=={mine} there, and start the worker again",
            )  # fmt: skip


def _lost_workers() -> tuple[type[Exception], ...]:
    from concurrent.futures import CancelledError

    from distributed import KilledWorker

    return (KilledWorker, CancelledError)
