"""A source file before its first document: how it is read, and what it tells of its own wiki."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Literal

from tasks.clean.dump import Dump
from tasks.clean.kinds import Kind
from tasks.clean.library import writing
from tasks.clean.mediawiki import TEMPLATE, Site, day_in, day_of, is_template, read_page
from tasks.clean.pages import Options, Origin
from tasks.clean.raw import Raw, Reader
from tasks.clean.rows import Rows


class SourceFile:
    """A file that is read once, and what its pages tell as they pass.

    Args:
        path: the file.
        kind: what it is.
        options: whether templates are asked for, and where rows hold what.
        library: where to keep a dump's templates.
        on_damage: see `Dump`.
        progress: called with the bytes of the file that have been read.
        threads: see `Dump`.

    Attributes:
        read: bytes of the file that have been read.
    """

    def __init__(
        self,
        path: Path,
        kind: Kind,
        options: Options,
        library: Path,
        on_damage: Literal["error", "keep"],
        progress: Callable[[int], None],
        threads: int = 1,
    ) -> None:
        self.read = 0
        self._progress = progress
        self._reader: Reader
        if kind == "dump":
            self._reader = Dump(path, on_damage, self._told, threads)
        else:
            self._reader = Rows(path, kind, on_damage, self._told, threads, options)
        self._language = options.default_language
        self._library = library if is_read_first(kind, options) else None
        self._templates = 0
        self._newest: date | None = None

    @property
    def damage(self) -> str | None:
        """Where the file ends early, once it has been read to there."""
        return self._reader.damage

    def raw(self) -> Iterator[Raw]:
        """Yield each page or row; see `Dump.raw` and `Rows.raw`."""
        if self._library is None:
            yield from self._reader.raw()
            return
        with writing(self._library) as add:
            for raw in self._reader.raw():
                self._see(raw.data, add)
                yield raw

    def origin(self) -> Origin:
        """What is known by now: a dump's wiki from its first page on, the rest in the end."""
        if not isinstance(self._reader, Dump):
            return Origin(Site(language=self._language, name=""))
        today = day_in(self._reader.path.name) or self._newest
        return Origin(self._reader.site, today, self._library if self._templates else None)

    def _see(self, source: bytes, add: Callable[[str, str], object]) -> None:
        day = day_of(source)
        if day and (self._newest is None or day > self._newest):
            self._newest = day
        if is_template(source):
            # A template that cannot be read is told when the page's turn comes.
            with suppress(SyntaxError):
                page = read_page(source, self.origin().site)
                if page.namespace == TEMPLATE:
                    add(page.title.partition(":")[2], page.text)
                    self._templates += 1

    def _told(self, read: int) -> None:
        self.read = read
        self._progress(read)


def is_read_first(kind: Kind, options: Options) -> bool:
    """Whether a file's first page can be cleaned only when its last has been read."""
    return kind == "dump" and options.templates == "dump"
