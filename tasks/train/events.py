"""The training log as TensorBoard event files, to be followed live and kept with the checkpoint."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from megatron_bridge.resume import read_lines

# A value of the log, and the name it has in TensorBoard.
TAGS = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "grad_norm": "train/grad_norm",
    "tokens_per_second": "train/tokens_per_second",
}
_FLUSH_SECONDS = 5

Line = Mapping[str, Any]


def write(folder: Path, lines: Iterable[Line]) -> None:
    """Write a whole log at once; the last step is placed at the present time.

    Args:
        folder: where the event file goes.
        lines: the log's lines: `step`, `seconds` and the keys of `TAGS`.
    """
    lines = list(lines)
    moment = time.time() - sum(line["seconds"] for line in lines)
    writer = _writer(folder)
    for line in lines:
        moment += line["seconds"]
        _add(writer, line, moment)
    writer.close()


class Live:
    """The events of a run under way, in one file an attempt: what earlier ones lost is not in it.

    Args:
        folder: emptied at the first step that is told.
        log: the run's log, which holds the steps of earlier attempts that still count.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        self._folder, self._log = folder, log
        self._writer: Any = None

    def tell(self, line: Line) -> None:
        """Add a step, at the present time."""
        if self._writer is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._writer = _writer(self._folder)
            for earlier in read_lines(self._log):
                if earlier["step"] < line["step"]:
                    _add(self._writer, earlier, time.time())
        _add(self._writer, line, time.time())

    def close(self) -> None:
        """Write what is buffered and end the writer's thread."""
        if self._writer is not None:
            self._writer.close()


def _writer(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), flush_secs=_FLUSH_SECONDS)


def _add(writer: Any, line: Line, moment: float) -> None:
    for key, tag in TAGS.items():
        writer.add_scalar(tag, line[key], line["step"], walltime=moment)
