"""Work shards: a corpus in pieces of some MiB, each done whole by one worker, and then sealed.

Pages are cut from the files once, in one process, and wait in plain files. A shard's result is
there as a whole or not at all, so a run that was killed goes on with the shards that are not.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal

from pydantic import TypeAdapter

from tasks.clean.kinds import Kind, kind_of
from tasks.clean.origins import SourceFile, is_read_first
from tasks.clean.pages import Options, Origin
from tasks.clean.raw import Raw

# Small ones first, so that a small corpus, too, has work for all workers.
_SMALLEST, _LARGEST, _OF_A_SIZE = 1 << 18, 1 << 22, 8
# A raw's file, its place there, and its length.
_HEAD = struct.Struct("<IQQI")
_SIZES = "sizes.json"


def layout() -> tuple[int, ...]:
    """What the cuts between shards depend on, beside the corpus."""
    return _SMALLEST, _LARGEST, _OF_A_SIZE


@dataclass(frozen=True)
class Source:
    """A file of the corpus: its path there, what it is, and what is known of it."""

    name: str
    kind: Kind
    origin: Origin


@dataclass(frozen=True)
class Shard:
    """Pages that one worker cleans.

    Attributes:
        number: counted through the corpus from 0.
        folder: where all shards lie; every worker sees it.
        sources: the files that its pages are from, by number.
        read: bytes of the corpus, as it lies on the disk, up to its end.
    """

    number: int
    folder: Path
    sources: dict[int, Source]
    read: int

    @property
    def waiting(self) -> Path:
        """The file of its pages, until it is sealed."""
        return self.folder / "waiting" / f"{self.number:05}"

    @property
    def sealed(self) -> Path:
        """The folder of its result."""
        return self.folder / "sealed" / f"{self.number:05}"

    @property
    def is_sealed(self) -> bool:
        """Whether its result is there."""
        return self.sealed.is_dir()

    def raws(self) -> Iterator[tuple[int, Raw]]:
        """Yield each page with the number of its file."""
        data = self.waiting.read_bytes()
        at = 0
        while at < len(data):
            source, start, stop, size = _HEAD.unpack_from(data, at)
            at += _HEAD.size + size
            yield source, Raw(start, stop, data[at - size : at])

    @contextmanager
    def sealing(self) -> Iterator[Path]:
        """A new folder that becomes the result at the end, if nothing is raised before that."""
        work = Path(mkdtemp(prefix=".", dir=self.sealed.parent))
        try:
            yield work
            (work / _SIZES).write_text(json.dumps(_sizes(work)))
            os.rename(work, self.sealed)
        except OSError:
            # A cluster may give a shard to two workers; both make the same of it.
            if not self.is_sealed:
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
        self.waiting.unlink(missing_ok=True)


@dataclass
class Cut:
    """A corpus that has been cut: what a run needs to go on without reading it again.

    Attributes:
        sources: its files.
        shards: of each shard the numbers of its first and its last file, `Shard.read`, and the size
            of what waits.
        damage: where files end early.
    """

    sources: list[Source] = field(default_factory=list)
    shards: list[tuple[int, int, int, int]] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)


class Cutter:
    """What cuts a corpus into shards.

    Args:
        folder: where they wait, and where an earlier run may have left some.
        options: whether templates are asked for: of a dump the first page can then be cleaned
            when the last has been read.
        on_damage: see `Dump`.
        threads: see `Dump`.

    Attributes:
        folder: the same.
        cut: what is known by now.
        reads_first: whether the corpus is read to its end before its first shard is there.
    """

    def __init__(
        self, folder: Path, options: Options, on_damage: Literal["error", "keep"], threads: int
    ) -> None:
        self.cut = Cut()
        self.reads_first = False
        self.folder = folder
        self._options = options
        self._on_damage = on_damage
        self._threads = threads
        self._before = 0
        for name in ("waiting", "sealed"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for left in (folder / "sealed").iterdir():
            if left.name.startswith(".") or not _is_whole(left):
                shutil.rmtree(left, ignore_errors=True)

    def shards(
        self, files: Sequence[tuple[str, Path]], progress: Callable[[int], None]
    ) -> Iterator[Shard]:
        """Yield each shard, sealed by an earlier run or waiting.

        Args:
            files: the corpus: names, and where they lie.
            progress: called with the bytes of the corpus that have been read.

        Raises:
            InputError: see `Dump` and `Rows`.
        """
        record = self.folder / "cut.json"
        if record.exists():
            self.cut = self._restored(record.read_bytes())
            numbers = range(len(self.cut.shards))
            if all(map(self._is_there, numbers)):
                yield from map(self.shard, numbers)
                return
            self.cut = Cut()
        kinds = [kind_of(path) for _, path in files]
        self.reads_first = any(is_read_first(kind, self._options) for kind in kinds)
        found = self._cut(files, kinds, progress)
        if self.reads_first:
            found = iter(list(found))
            self._write(record)
            yield from map(self.shard, found)
        else:
            yield from map(self.shard, found)
            self._write(record)

    def shard(self, number: int) -> Shard:
        """A shard that has been cut."""
        first, last, read, _ = self.cut.shards[number]
        sources = {source: self.cut.sources[source] for source in range(first, last + 1)}
        return Shard(number, self.folder, sources, read)

    def _is_there(self, number: int) -> bool:
        """Whether a shard is sealed or waits, whole."""
        shard = self.shard(number)
        if shard.is_sealed:
            return True
        return shard.waiting.exists() and shard.waiting.stat().st_size == self.cut.shards[number][3]

    def _cut(
        self,
        files: Sequence[tuple[str, Path]],
        kinds: Sequence[Kind],
        progress: Callable[[int], None],
    ) -> Iterator[int]:
        """Yield the number of each shard that has been cut."""
        held: list[tuple[int, Raw]] = []
        size = 0
        for number, ((name, path), kind) in enumerate(zip(files, kinds, strict=True)):
            file = self._opened(number, path, kind, progress)
            for raw in file.raw():
                if number == len(self.cut.sources):
                    self.cut.sources.append(Source(name, kind, file.origin()))
                held.append((number, raw))
                size += len(raw.data)
                if size >= min(_LARGEST, _SMALLEST << len(self.cut.shards) // _OF_A_SIZE):
                    yield self._spool(held, self._before + file.read)
                    held, size = [], 0
            # All that a dump tells of itself is known in the end; an empty file yields nothing.
            self.cut.sources[number:] = [Source(name, kind, file.origin())]
            self._before += path.stat().st_size
            if file.damage is not None:
                self.cut.damage.append(f"{name}: {file.damage}")
        if held:
            yield self._spool(held, self._before)

    def _opened(
        self, number: int, path: Path, kind: Kind, progress: Callable[[int], None]
    ) -> SourceFile:
        before = self._before
        return SourceFile(
            path,
            kind,
            self._options,
            self.folder / f"templates-{number:05}",
            self._on_damage,
            lambda read: progress(before + read),
            self._threads,
        )

    def _spool(self, held: Sequence[tuple[int, Raw]], read: int) -> int:
        number = len(self.cut.shards)
        size = sum(_HEAD.size + len(raw.data) for _, raw in held)
        self.cut.shards.append((held[0][0], held[-1][0], read, size))
        shard = self.shard(number)
        if not shard.is_sealed:
            # A worker that an earlier run has left on a cluster may still be reading it.
            new = shard.waiting.with_suffix(".new")
            with open(new, "wb") as file:
                for source, raw in held:
                    file.write(_HEAD.pack(source, raw.start, raw.stop, len(raw.data)))
                    file.write(raw.data)
            os.replace(new, shard.waiting)
        return number

    def _write(self, record: Path) -> None:
        new = record.with_suffix(".new")
        new.write_bytes(TypeAdapter(Cut).dump_json(self.cut))
        os.replace(new, record)

    def _restored(self, text: bytes) -> Cut:
        cut = TypeAdapter(Cut).validate_json(text)
        for number, source in enumerate(cut.sources):
            if source.origin.library is not None:
                # The folder may have been moved since.
                library = self.folder / source.origin.library.name
                origin = replace(source.origin, library=library)
                cut.sources[number] = replace(source, origin=origin)
        return cut


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != _SIZES)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _is_whole(folder: Path) -> bool:
    """Whether a result is as it was sealed: where a machine goes down, files may end early."""
    try:
        told = json.loads((folder / _SIZES).read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return bool(told == _sizes(folder))
