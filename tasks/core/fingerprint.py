"""What a stage's output depends on, as canonical JSON and a short digest of it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.core.errors import ConfigError, InputError

if TYPE_CHECKING:
    from pydantic import BaseModel

_BUFFER = 1 << 20
_RACY_NANOSECONDS = 2_000_000_000
_SAVE_SECONDS = 5.0
_ABSENT = object()


class Runtime:
    """Marks a config field that does not bear on the output's bytes: `Annotated[int, Runtime]`.

    Marked fields (workers, launcher, paths, how often to save) stay out of the fingerprint.
    """


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, finite numbers, UTF-8 as it is.

    Raises:
        ConfigError: the value holds something with no stable form (a set, a date, NaN, an object).
    """
    return json.dumps(
        stable(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest(value: Any) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:12]


def identity(config: BaseModel) -> dict[str, Any]:
    """A config's fields as JSON values, without those marked `Runtime`."""
    return {
        name: stable(getattr(config, name), name)
        for name, field in type(config).model_fields.items()
        if not any(mark is Runtime or isinstance(mark, Runtime) for mark in field.metadata)
    }


def stable(value: Any, where: str = "value") -> Any:
    """A value as plain JSON data, or a `ConfigError` that names the place without a stable form."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    # Commands that fingerprint nothing start without it.
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        return {key: stable(item, f"{where}.{key}") for key, item in identity(value).items()}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: stable(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [stable(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise ConfigError(
        "A value has no stable form, so it cannot enter a fingerprint",
        where=where,
        expected="text, whole or finite numbers, true, false, null, or lists and tables of these",
        got=f"{value!r} ({type(value).__name__})",
        fix="write it as one of these (quote a date), or mark the field Runtime",
    )


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Every leaf that differs between two JSON values, in words: `train.steps: 12 -> 7`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [
            line
            for key in sorted({*old, *new})
            for line in differences(
                old.get(key, _ABSENT), new.get(key, _ABSENT), f"{where}.{key}".lstrip(".")
            )
        ]
    if _is_list(old) and _is_list(new) and len(old) == len(new):
        return [
            line
            for index, pair in enumerate(zip(old, new, strict=True))
            for line in differences(*pair, f"{where}[{index}]")
        ]
    if type(old) is type(new) and old == new:
        return []
    return [f"{where}: {_say(old)} -> {_say(new)}"]


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal, read in pieces of 1 MiB."""
    state = hashlib.sha256()
    buffer = memoryview(bytearray(_BUFFER))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            state.update(buffer[:count])
    return state.hexdigest()


class DigestCache:
    """Digests of local files, remembered by path, inode, size and mtime in nanoseconds.

    Args:
        path: the JSON file it is kept in; written atomically, merged with what others wrote.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def sha256(self, path: Path | str) -> str:
        """The SHA-256 of a file, read again only when the file has changed.

        Raises:
            InputError: the file does not exist or is not a file.
        """
        return self.sha256_of([path])[0]

    def sha256_of(self, paths: Iterable[Path | str]) -> list[str]:
        """The SHA-256 of files, in their order; the cache is written every few seconds.

        Raises:
            InputError: a file does not exist or is not a file.
        """
        with self._lock:
            known = self._load()
        found, new, saved = [], dict[str, Any](), time.monotonic()
        for path in paths:
            real = Path(os.path.realpath(path))
            value, entry = _hashed(real, known.get(str(real)))
            found.append(value)
            if entry:
                new[str(real)] = entry
            if new and time.monotonic() - saved > _SAVE_SECONDS:
                self._save(new)
                new, saved = {}, time.monotonic()
        if new:
            self._save(new)
        return found

    def _load(self) -> dict[str, Any]:
        try:
            table = json.loads(self._path.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return table if isinstance(table, dict) else {}

    def _save(self, entries: dict[str, Any]) -> None:
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({**self._load(), **entries}, indent=0)
            temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, self._path)


def _hashed(path: Path, known: Any) -> tuple[str, list[Any] | None]:
    """A file's digest, and what to remember of it, if it is new and safe to remember."""
    if not path.is_file():
        raise InputError(
            "A source file is missing", where=path, expected="a file", got="none",
            fix="correct the path in the recipe",
        )  # fmt: skip
    before = path.stat()
    key = [before.st_ino, before.st_size, before.st_mtime_ns]
    if isinstance(known, list) and known[:-1] == key:
        return str(known[-1]), None
    value = sha256_file(path)
    after = path.stat()
    unchanged = [after.st_ino, after.st_size, after.st_mtime_ns] == key
    # A file written within a clock tick of its hashing can change without a new mtime.
    if unchanged and time.time_ns() - before.st_mtime_ns > _RACY_NANOSECONDS:
        return value, [*key, value]
    return value, None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _say(value: Any) -> str:
    return "(absent)" if value is _ABSENT else json.dumps(value, ensure_ascii=False, default=str)
