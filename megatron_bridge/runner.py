"""Groups of work run in processes, within a memory, and what is finished kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from megatron_bridge.errors import ConfigError
from megatron_bridge.journal import Journal
from megatron_bridge.launch import pool
from megatron_bridge.sources.stored import BLOCK_BYTES
from megatron_bridge.transfer import GROUP_BYTES, Group

Progress = Callable[..., None]
"""Called as `progress(done, total, unit="tensors")`."""

BASE_BYTES, WORKER_BYTES = 350 * 2**20, 600 * 2**20
"""Resident memory of the first process and of each further one (measured: PyTorch and blocks)."""


class Runner:
    """Runs groups in processes, within a memory, and keeps what is finished.

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
        self._workers = workers(memory, total_bytes)
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
        for (number, group), result in zip(
            todo, pool.run(function, todo, min(self._workers, len(todo) or 1)), strict=True
        ):
            if journal:
                journal.note(names[number], result)
            results[number] = result
            self._tell(group)
        return results

    def _tell(self, *done: Group) -> None:
        self._done += sum(len({piece.bound for piece in group}) for group in done)
        if self._progress is not None and done:
            self._progress(self._done, self._total, unit="tensors")


def workers(memory: int | None, total_bytes: int) -> int:
    """Return how many processes fit into `memory` bytes (None: half of what the machine has).

    Raises:
        ConfigError: not even one does.
    """
    if memory is None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    least = BASE_BYTES + 5 * BLOCK_BYTES
    if memory < least:
        raise ConfigError(
            "A conversion needs more memory",
            where="memory",
            expected=f"at least {least / 2**20:.0f} MB",
            got=f"{memory / 2**20:.0f} MB",
            fix="raise it; PyTorch alone takes most of this",
        )
    # Starting processes takes longer than one process takes for a small model.
    useful = min(len(os.sched_getaffinity(0)), total_bytes // (4 * GROUP_BYTES) + 1)
    return max(1, min(useful, (memory - BASE_BYTES) // WORKER_BYTES))
