"""Evaluation sets from files: an item a row of JSON lines, or a line of text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tasks.core import sources
from tasks.core.errors import ConfigError


def set_names(urls: Iterable[str]) -> dict[str, Path]:
    """The files by the names of their sets, which are the files' without their endings.

    Raises:
        ConfigError: two have one name.
        InputError: a file is not there.
    """
    found: dict[str, Path] = {}
    for url in urls:
        path = sources.locate(url)
        name = path.name.partition(".")[0]
        if name in found:
            raise ConfigError(
                "Two evaluation sets have one name", where="clean.evaluation_sets",
                expected="files with names of their own", got=f"{found[name]} and {path}",
                fix="rename one of them",
            )  # fmt: skip
        found[name] = path
    return found


def read_texts(path: Path) -> list[str]:
    """A set's items: all text of a row that is JSON, or else the line itself.

    Raises:
        ConfigError: it is no text, or holds no item.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise _refused(path, error) from error
    texts = [text for line in lines if (text := _text(line))]
    if not texts:
        raise _refused(path, "no text in any line")
    return texts


def _text(line: str) -> str:
    if not line.lstrip().startswith(("{", "[")):
        return line.strip()
    try:
        return "\n".join(_strings(json.loads(line)))
    except (ValueError, RecursionError):
        return line.strip()


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def _refused(path: Path, got: object) -> ConfigError:
    return ConfigError(
        "An evaluation set cannot be read", where=path, got=got,
        expected="text in UTF-8: JSON lines, or an item a line",
        fix="name another file in clean.evaluation_sets",
    )  # fmt: skip
