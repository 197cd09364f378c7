"""Which documents and paragraphs of a corpus repeat others: decided once, from all shards' marks.

A shard's marks lie beside it in files of plain numbers. Shards are taken in order, so the first
copy stays, whichever worker was first. Eight bytes a document and one a paragraph are in memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.clean.boilerplate import Dropped, orphans
from tasks.clean.dedup import (
    AGAIN,
    BANDS,
    FIRST,
    NONE,
    ROWS,
    Marks,
    first_of,
    near_duplicates,
    repeated,
)

Reason = Literal["duplicate", "near_duplicate"]
_BLOCK = 1 << 21
_FILES = {"documents": "u8", "paragraphs": "u8", "lines": "i8", "signatures": "u4"}


class Duplicates(BaseModel):
    """What becomes of repeated text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    duplicates: Literal["keep", "exact", "near"] = Field(
        "keep", description="Documents to drop: none, equal ones, or nearly equal ones as well"
    )
    near_threshold: float = Field(
        0.8, gt=0, le=1, description="Share of 5-grams that makes documents nearly equal"
    )
    drop_repeated_paragraphs: bool = Field(
        False, description="Drop paragraphs that stand in an earlier document, or earlier in theirs"
    )
    min_repeated_words: int = Field(
        10, ge=1, description="Shorter paragraphs, such as headings, may be repeated"
    )


@dataclass(frozen=True)
class Plan:
    """What repeats what, documents counted through all shards from 0.

    Attributes:
        keeper: int64 [documents], the document that each repeats, or itself where it stays.
        near: bool [documents], whether it repeats its keeper nearly and not wholly.
        paragraphs: uint64 [paragraphs], their numbers.
        repeated: int8 [paragraphs], see `dedup.repeated`; documents that go have none.
        lines: int64 [documents + 1], where each document's paragraphs begin.
    """

    keeper: Any
    near: Any
    paragraphs: Any
    repeated: Any
    lines: Any
    _released: set[int] = field(default_factory=set)

    def reason(self, document: int) -> Reason | None:
        """Why a document goes, or None where it stays."""
        if self.keeper[document] == document:
            return None
        return "near_duplicate" if self.near[document] else "duplicate"

    def kept_lines(self, document: int, text: str) -> tuple[str, list[Dropped]]:
        """A document's text without repeated paragraphs and headings of these alone, and these.

        To be asked of one document after the other.
        """
        where = self._where(document)
        marks = self.repeated[where]
        for index in (marks == AGAIN).nonzero()[0] if self._released else ():
            number = int(self.paragraphs[where][index])
            if number in self._released:
                self._released.remove(number)
                marks[index] = FIRST
        drop = marks == AGAIN
        if not drop.any():
            return text, []
        lines = text.split("\n")
        rules = ["repeated_paragraph" if gone else "" for gone in drop]
        for index in orphans(lines, drop):
            rules[index] = "empty_section"
        found = list(zip(lines, rules, strict=True))
        kept = "\n".join(line for line, rule in found if not rule)
        return kept, [Dropped(rule, line) for line, rule in found if rule]

    def release(self, document: int) -> None:
        """Let what a document was the first to hold stay where it comes next: it goes after all."""
        where = self._where(document)
        self._released.update(self.paragraphs[where][self.repeated[where] == FIRST].tolist())

    def _where(self, document: int) -> slice:
        return slice(self.lines[document], self.lines[document + 1])


def write_marks(folder: Path, documents: Iterable[Marks]) -> None:
    """Write a shard's marks into a new folder, in the order of its documents."""
    import numpy as np

    folder.mkdir()
    with (
        open(folder / "documents", "wb") as hashes,
        open(folder / "paragraphs", "wb") as paragraphs,
        open(folder / "lines", "wb") as lines,
        open(folder / "signatures", "wb") as signatures,
    ):
        for marks in documents:
            hashes.write(np.uint64(marks.document).tobytes())
            paragraphs.write(marks.paragraphs.tobytes())
            lines.write(np.int64(len(marks.paragraphs)).tobytes())
            signatures.write(marks.signature.tobytes())


def plan(folders: Sequence[Path], work: Path, options: Duplicates) -> Plan:
    """Decide what goes.

    Args:
        folders: the shards' marks, in the order of the corpus.
        work: an empty folder for as many bytes as the marks have.
        options: what is to go.
    """
    import numpy as np

    arrays = {name: _joined(folders, name, work) for name in _FILES}
    documents = arrays["documents"]
    keeper = np.arange(len(documents))
    if options.duplicates != "keep":
        keeper = first_of(documents)
    if options.duplicates == "near":
        signatures = arrays["signatures"].reshape(-1, BANDS * ROWS)
        new = keeper == np.arange(len(keeper))
        # What repeats a document that goes now repeats the one that stays.
        keeper = near_duplicates(signatures, options.near_threshold, new)[keeper]
    lines = np.concatenate(([0], np.cumsum(arrays["lines"])))
    gone = np.zeros(lines[-1], np.int8)
    if options.drop_repeated_paragraphs:
        stays = np.repeat(keeper == np.arange(len(keeper)), np.diff(lines))
        gone = repeated(_of_those(stays, arrays["paragraphs"], work / "kept"))
    near = documents != documents[keeper]
    return Plan(keeper, near, arrays["paragraphs"], gone, lines)


def _of_those(stays: Any, paragraphs: Any, path: Path) -> Any:
    """The numbers of paragraphs; those of a document that goes are nobody's first."""
    import numpy as np

    if not len(paragraphs):
        return paragraphs
    kept = np.memmap(path, np.uint64, "w+", shape=paragraphs.shape)
    for start in range(0, len(paragraphs), _BLOCK):
        block = slice(start, start + _BLOCK)
        kept[block] = np.where(stays[block], paragraphs[block], np.uint64(NONE))
    return kept


def _joined(folders: Sequence[Path], name: str, work: Path) -> Any:
    """All shards' numbers of a kind as one array on the disk."""
    import numpy as np

    with open(work / name, "wb") as file:
        for folder in folders:
            with open(folder / name, "rb") as part:
                shutil.copyfileobj(part, file)
    empty = (work / name).stat().st_size == 0
    return np.zeros(0, _FILES[name]) if empty else np.memmap(work / name, _FILES[name], "r")
