"""What a launcher does: start the ranks of one job, watch them, and say why they failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Launcher(Protocol):
    """Starts `world_size` ranks of `python -m MODULE SPEC` and waits for them."""

    def run(
        self,
        module: str,
        spec: Path,
        world_size: int,
        on_tick: Callable[[], None] | None = None,
    ) -> None:
        """Return when every rank has ended well.

        Args:
            module: a module of `megatron_bridge.worker`.
            spec: the job's JSON file; the ranks' output is kept in its folder.
            world_size: number of ranks.
            on_tick: called about twice a second while they run.

        Raises:
            PipelineError: what a rank reported, of the class that it raised there.
            RetryableError: a rank was lost.
        """


def failure_file(spec: Path, rank: int) -> Path:
    """Where a rank writes why it failed."""
    return spec.with_name(f"{spec.stem}.rank{rank}.failed.json")
