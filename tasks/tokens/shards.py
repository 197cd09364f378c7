"""A corpus to sealed shards, and these to datasets: killed in the middle, the run goes on."""

from __future__ import annotations

import functools
import json
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_bridge.launch import pool
from tasks.core.errors import InputError
from tasks.tokens import lines
from tasks.tokens.encode import Job, encode_block, sealed
from tasks.tokens.lines import Block
from tasks.tokens.merge import Merged, merge

_FORMAT = 1
"""Raised when the same job must give other shards."""


_WORTH_A_PROCESS = {"gigatoken": 1 << 26, "tiktoken": 1 << 24}
_TEXT_WORTH_A_PROCESS, _SENTENCES_WORTH_A_PROCESS = 1 << 22, 1 << 20


@dataclass(frozen=True)
class Totals:
    """What all shards hold together: documents and tokens by dataset, and lines set aside."""

    datasets: dict[str, dict[str, int]]
    set_aside: int


class Shards:
    """The shards of a corpus under a folder.

    What an earlier run of the same job on the same files sealed there is used; anything else goes.

    Args:
        folder: for nothing else; made where it is not there.
        files: JSON lines, in order.
        job: what decides on the bytes.
    """

    def __init__(self, folder: Path, files: Sequence[Path], job: Job) -> None:
        self._folder, self._files, self._job = folder, files, job
        self._count = 0
        self._stamps = [_stamp(file) for file in files]
        identity = json.dumps(
            {
                "format": _FORMAT,
                "layout": lines.layout(),
                "job": job.identity(),
                "files": self._stamps,
                # Another file with the old one's size and time has been put there later.
                "changed": [file.stat().st_ctime_ns for file in files],
            }
        )
        record = folder / "identity.json"
        if not record.is_file() or record.read_text(encoding="utf-8") != identity:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            record.write_text(identity, encoding="utf-8")
        for left in folder.glob(".*"):
            shutil.rmtree(left, ignore_errors=True)

    def build(self, workers: int, progress: Callable[..., None]) -> Totals:
        """Seal what is not sealed yet.

        Args:
            workers: processes at most; the bytes written do not depend on it.
            progress: called as `progress(done, total, unit="bytes", note=…)`.

        Raises:
            InputError: a compressed file is damaged, or a file has changed meanwhile.
            RetryableError: a worker died.
        """
        total = sum(file.stat().st_size for file in self._files)
        workers = min(workers, 1 + total // self._worth_a_process())
        waiting: deque[tuple[int, str]] = deque()
        encode = functools.partial(encode_block, self._job, self._folder)
        for _ in pool.run(encode, self._unsealed(waiting), workers):
            done, name = waiting.popleft()
            progress(done, total, unit="bytes", note=name)
        self._require_unchanged()
        return self._totals()

    def assemble(
        self, dataset: str, out: Path, progress: Callable[[int, int], None] = lambda *_: None
    ) -> Merged:
        """Write one dataset of all shards as `out.bin` and `out.idx`."""
        return merge([folder / dataset for folder in self.folders()], out, progress)

    def folders(self) -> Iterator[Path]:
        """The shards' folders, in order."""
        return (sealed(self._folder, number) for number in range(self._count))

    def gather(self, name: str, out: Path) -> None:
        """Put the shards' files of a name behind one another."""
        with open(out, "wb") as file:
            for folder in self.folders():
                with open(folder / name, "rb") as part:
                    shutil.copyfileobj(part, file)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder)

    def _worth_a_process(self) -> int:
        """Bytes that take as long as a process takes to start."""
        if self._job.sentences:
            return _SENTENCES_WORTH_A_PROCESS
        return _WORTH_A_PROCESS.get(self._job.spec.encoder, _TEXT_WORTH_A_PROCESS)

    def _unsealed(self, waiting: deque[tuple[int, str]]) -> Iterator[Block]:
        for block in lines.blocks(self._files):
            self._count = block.number + 1
            if not sealed(self._folder, block.number).is_dir():
                waiting.append((block.read, block.file.name))
                yield block

    def _require_unchanged(self) -> None:
        for file, before in zip(self._files, self._stamps, strict=True):
            if (now := _stamp(file)) != before:
                raise InputError(
                    "A file changed while it was tokenized", where=file,
                    expected=f"{before[1]} bytes, as at the beginning",
                    got=f"{now[1]} bytes, written to since", fix="run again when it is whole",
                )  # fmt: skip

    def _totals(self) -> Totals:
        datasets = {name: {"documents": 0, "tokens": 0} for name in self._job.datasets}
        set_aside = 0
        for folder in self.folders():
            counts = json.loads((folder / "counts.json").read_bytes())
            set_aside += counts["set_aside"]
            for name, found in counts["datasets"].items():
                for what, count in found.items():
                    datasets[name][what] += count
        return Totals(datasets, set_aside)


def _stamp(file: Path) -> list[Any]:
    status = file.stat()
    return [str(file.absolute()), status.st_size, status.st_mtime_ns]
