"""Which files the sources of a corpus are, wherever they lie, and what they are called in it.

Hidden files, links, empty and special files below a folder are passed over and counted.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from megatron_bridge.sources import filesystem
from megatron_bridge.sources.address import Address, parse
from megatron_bridge.sources.http import Http
from megatron_bridge.sources.remote import patiently
from tasks.core import sources
from tasks.core.errors import ConfigError, InputError
from tasks.ingest.kinds import refuse_name

_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Entry:
    """One file of the corpus.

    Attributes:
        name: its path in the raw corpus.
        place: where it lies.
        bytes: its size; None where a server does not tell.
        state: of a file elsewhere, its ETag, else a checksum or date, as far as one is told.
        by_ranges: of a file elsewhere, whether ranges of its bytes can be had.
    """

    name: str
    place: Path | Address
    bytes: int | None
    state: str = ""
    by_ranges: bool = True

    @property
    def shown(self) -> str:
        """Where it lies, without secrets."""
        return self.place.shown if isinstance(self.place, Address) else str(self.place)


@dataclass
class Listing:
    """The files of the sources, in order, and how many were passed over by reason."""

    files: list[Entry] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def listed(given: Sequence[str]) -> Listing:
    """Find the files of sources.

    A file alone keeps its name; several are `00-source/path/in/it`, so that the order of their
    names is the order of the sources.

    Raises:
        ConfigError: a URL that cannot be read here.
        InputError: nothing is there; the same file twice; a name that cannot be, or is that of an
            archive.
        RetryableError: a server cannot be reached.
    """
    listing = Listing()
    width = max(2, len(str(len(given) - 1)))
    for number, source in enumerate(given):
        found = sorted(_found(source, listing.skipped), key=lambda entry: _parts(entry.name))
        for entry in found:
            _require_name(entry)
        folder = f"{number:0{width}}-{name_of(source)}"
        listing.files += [replace(entry, name=f"{folder}/{entry.name}") for entry in found]
    if len(listing.files) == 1:
        (only,) = listing.files
        listing.files = [replace(only, name=_parts(only.name)[-1])]
    _require_once(listing.files)
    return listing


def name_of(source: str) -> str:
    """What a source is called: the last part of its path before any `*`, without its endings."""
    path = source
    if "://" in source:
        parts = urlsplit(source)
        quoted = parts.scheme in ("file", "http", "https")
        inner = unquote(parts.path) if quoted else parts.path
        path = f"{parts.netloc.rpartition('@')[2]}/{inner}"
    before = takewhile(lambda part: not _MAGIC.search(part), path.split("/"))
    named = [part for part in before if part not in ("", ".", "..")] or [""]
    return re.sub(r"[^\w.-]+", "-", named[-1]).strip("-.").split(".")[0] or "source"


def _found(source: str, skipped: Counter[str]) -> list[Entry]:
    if sources.is_here(source):
        return _here(source, skipped)
    try:
        address = parse(source)
    except ConfigError as error:
        raise error.at("ingest.source") from None
    if isinstance(address, Path):
        return _here(str(address), skipped)
    return _web(address) if address.is_http else _elsewhere(address, skipped)


def _here(source: str, skipped: Counter[str]) -> list[Entry]:
    path = sources.place(source)
    pattern: tuple[str, ...] = ()
    if not path.exists():
        path, pattern = _split(path)
    if not path.is_dir():
        path = sources.locate(source)
        return [Entry(path.name, path, path.stat().st_size)]
    before = skipped.total()
    found = list(_below(path, pattern, skipped))
    if not found:
        raise _nothing(source, pattern, skipped.total() - before)
    return found


def _split(path: Path) -> tuple[Path, tuple[str, ...]]:
    """A path in front of the first part with a `*`, `?` or `[`, and the parts from there on."""
    for number, part in enumerate(path.parts):
        if _MAGIC.search(part):
            return Path(*path.parts[:number]), path.parts[number:]
    return path, ()


def _below(base: Path, pattern: tuple[str, ...], skipped: Counter[str]) -> Iterator[Entry]:
    for place, folders, names in os.walk(base, onerror=_refuse):
        inner = Path(place).relative_to(base)
        descended = folders if _deeper(len(inner.parts) + 1, pattern) else []
        # What is taken out here is not walked.
        folders[:] = [name for name in descended if not _passed_over(Path(place, name), skipped)]
        for name in names:
            path = Path(place, name)
            if pattern and not _matches((*inner.parts, name), pattern):
                continue
            if not _passed_over(path, skipped):
                yield Entry((inner / name).as_posix(), path, path.stat().st_size)


def _passed_over(path: Path, skipped: Counter[str]) -> bool:
    found = path.lstat()
    if path.name.startswith("."):
        reason = "hidden"
    elif stat.S_ISLNK(found.st_mode):
        reason = "links"
    elif stat.S_ISREG(found.st_mode):
        reason = "" if found.st_size else "empty"
    else:
        reason = "" if stat.S_ISDIR(found.st_mode) else "special"
    skipped.update([reason] if reason else [])
    return bool(reason)


def _refuse(error: OSError) -> None:
    raise error


def _elsewhere(address: Address, skipped: Counter[str]) -> list[Entry]:
    base, pattern = _split_address(address)
    depth = len(pattern) if pattern and "**" not in pattern else None
    found = patiently(lambda: filesystem.found(base, depth), base.shown)
    if set(found) == {""} and not pattern:
        size, state = found[""]
        if not size:
            raise _nothing(address.shown, pattern, 1)
        return [Entry(address.name, address, size, state)]
    entries = []
    before = skipped.total()
    for name, (size, state) in found.items():
        parts = _parts(name)
        if not name or (pattern and not _matches(parts, pattern)):
            continue
        if any(part.startswith(".") for part in parts) or not size:
            skipped["empty" if not size else "hidden"] += 1
            continue
        entries.append(Entry(name, base.join(name), size, state))
    if not entries:
        raise _nothing(address.shown, pattern, skipped.total() - before)
    return entries


def _split_address(address: Address) -> tuple[Address, tuple[str, ...]]:
    head, *rest = re.split(r"(?=/[^/]*[*\[])", address.url, maxsplit=1)
    return Address(head), tuple(rest[0].strip("/").split("/")) if rest else ()


def _web(address: Address) -> list[Entry]:
    if _MAGIC.search(urlsplit(address.url).path) or not address.name:
        raise InputError(
            "A web server does not list its files", where=address.shown,
            expected="the URL of one file", got="a folder or a pattern",
            fix="name every file in a list: ingest.source=[URL, URL]",
        )  # fmt: skip
    file = Http(address)
    size, state, by_ranges = patiently(file.look, file.shown)
    if size == 0:
        raise _nothing(address.shown, (), 1)
    return [Entry(address.name, address, size, state, by_ranges)]


def _deeper(level: int, pattern: tuple[str, ...]) -> bool:
    return not pattern or "**" in pattern or level < len(pattern)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern or not parts:
        return not parts and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(name).parts


def _nothing(source: str, pattern: Sequence[str], skipped: int) -> InputError:
    passed = f"; {skipped} hidden, empty, or links were passed over" if skipped else ""
    return InputError(
        "No file matches the source" if pattern else "The source holds no file", where=source,
        expected="at least one file that is not empty, and the right to see it",
        got=f"none{passed}", fix="correct ingest.source in the recipe",
    )  # fmt: skip


def _require_name(entry: Entry) -> None:
    refuse_name(entry.name, entry.shown)
    parts = entry.name.split("/")
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        parts = []
    if not parts or {"", ".", ".."} & set(parts) or "\0" in entry.name:
        raise InputError(
            "A file's name cannot be used", where=ascii(entry.shown), got=ascii(entry.name),
            expected="a path in UTF-8 without empty parts and `..`", fix="rename the file",
        )  # fmt: skip


def _require_once(files: Sequence[Entry]) -> None:
    """Refuse the same file twice, and a file that has the name of another's folder."""
    seen: dict[Any, str] = {}
    for entry in files:
        place = entry.place
        key = place.url.split("?")[0] if isinstance(place, Address) else os.path.realpath(place)
        if key in seen:
            raise InputError(
                "Two sources name the same file", where=entry.shown, expected="every file once",
                got=f"{seen[key]} and {entry.name}", fix="take one of them out of ingest.source",
            )  # fmt: skip
        seen[key] = entry.name
    names = {_parts(entry.name) for entry in files}
    for name in names:
        if any(name[:length] in names for length in range(1, len(name))):
            raise InputError(
                "A file has the name of a folder", where="/".join(name),
                expected="names that can be side by side on a disk", got="a file above it",
                fix="name fewer of them by a pattern",
            )  # fmt: skip
