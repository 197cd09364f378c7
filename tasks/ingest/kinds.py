"""What can be no corpus, told by name and first bytes; what it is, the clean stage finds out."""

from __future__ import annotations

import re
from pathlib import Path

from tasks.core.errors import InputError

_ARCHIVE = re.compile(r"\.(zip|7z|rar|tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst))$", re.IGNORECASE)
_HISTORY = re.compile(r"(?:meta-history|stub-|\bhistory\d*\.)[^/]*xml")
_TABLE = re.compile(r"\.(csv|tsv)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)
_BINARY = {
    b"PK\x03\x04": "a zip archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a rar archive",
    b"\x7fELF": "a program",
    b"%PDF": "a PDF document",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF8": "a picture",
}
_TAR = slice(257, 262)


def refuse_name(name: str, where: str) -> None:
    """Refuse what its name tells to be no corpus.

    Raises:
        InputError: an archive, a table in CSV, or a dump of its pages' history.
    """
    if _ARCHIVE.search(name):
        raise _archive(where, "an archive")
    if _TABLE.search(name):
        raise _unknown(where, "a table in CSV", "convert it to Parquet or JSON lines")
    if _HISTORY.search(name):
        raise InputError(
            "This dump holds the history of its pages, and not their text", where=where,
            expected="a pages-articles dump: one revision of each page", got=name,
            fix="name a pages-articles dump, as https://dumps.wikimedia.org offers",
        )  # fmt: skip


def refuse_content(path: Path, where: str) -> None:
    """Refuse what its first bytes tell to be no corpus.

    Raises:
        InputError: an archive, a program, a picture.
    """
    with open(path, "rb") as file:
        head = file.read(512)
    if head[_TAR] == b"ustar":
        raise _archive(where, "a tar archive")
    for magic, kind in _BINARY.items():
        if head.startswith(magic):
            if "archive" in kind:
                raise _archive(where, kind)
            raise _unknown(where, f"{kind}: {head[:8]!r}", "convert it to one of these")


def _archive(where: str, got: str) -> InputError:
    return _unknown(where, got, "unpack it, and name the folder")


def _unknown(where: str, got: str, fix: str) -> InputError:
    return InputError(
        "The source is of an unknown kind", where=where, got=got,
        expected="a MediaWiki dump, JSON lines, Parquet or text, also in gz, bz2, xz or zst",
        fix=f"{fix}; or name the other files by a pattern",
    )  # fmt: skip
