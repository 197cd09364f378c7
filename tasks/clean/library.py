"""A wiki's own templates in a file, for any number of processes and of any size."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

# Templates and their characters.
_MOST_REMEMBERED = 2_000
_LARGEST_REMEMBERED = 10_000_000


class Library(Mapping[str, str]):
    """Wikitext of templates by name. It pickles as its path, and opens where it is first read.

    Args:
        path: what `write` wrote.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._remembered: dict[str, str | None] = {}
        self._size = 0

    @classmethod
    def write(cls, path: Path, templates: Iterable[tuple[str, str]]) -> Library:
        """Make a library of templates; see `writing`."""
        with writing(path) as add:
            for name, text in templates:
                add(name, text)
        return cls(path)

    def __getitem__(self, name: str) -> str:
        if name not in self._remembered:
            if len(self._remembered) >= _MOST_REMEMBERED or self._size > _LARGEST_REMEMBERED:
                self._remembered.clear()
                self._size = 0
            found = self._open().execute("SELECT text FROM template WHERE name = ?", (name,))
            row = found.fetchone()
            self._remembered[name] = row[0] if row else None
            self._size += len(row[0]) if row else 0
        text = self._remembered[name]
        if text is None:
            raise KeyError(name)
        return text

    def __len__(self) -> int:
        return int(self._open().execute("SELECT count(*) FROM template").fetchone()[0])

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return (row[0] for row in self._open().execute("SELECT name FROM template ORDER BY name"))

    def __reduce__(self) -> tuple[type[Library], tuple[Path]]:
        return Library, (self._path,)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            uri = f"{self._path.resolve().as_uri()}?mode=ro"
            self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        return self._connection


@contextmanager
def writing(path: Path) -> Iterator[Callable[[str, str], object]]:
    """A function that adds a template to a new library: its title without namespace, its wikitext.

    Of one title the last wins.

    Args:
        path: where; a file that is there is replaced.
    """
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    try:
        connection.execute("CREATE TABLE template (name TEXT PRIMARY KEY, text TEXT)")
        insert = "INSERT OR REPLACE INTO template VALUES (?, ?)"
        yield lambda name, text: connection.execute(insert, (name, text))
        connection.commit()
    finally:
        connection.close()
