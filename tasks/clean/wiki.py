"""What the markup machine must know of a wiki, and the ledger of what it did to a page."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Literal

from tasks.clean.names import CATEGORIES, FILES
from tasks.clean.templates import TEMPLATES, Templates
from tasks.core.errors import PipelineError

_SAMPLE = 300
_LONGEST_TRACE = 5_000


class PageTimeout(PipelineError):
    """A page took longer than it may; the run goes on without it."""


@dataclass(frozen=True)
class Namespaces:
    """Which link prefixes (lower case) are no text where they stand: files and categories."""

    files: frozenset[str] = FILES
    hidden: frozenset[str] = CATEGORIES | {"media"}

    @classmethod
    def of(cls, hidden: Iterable[str], files: Iterable[str] = ()) -> Namespaces:
        """The wiki's own names beside those of `names.txt`."""
        return cls(cls.files | _lower(files), cls.hidden | _lower(hidden))


@dataclass(frozen=True)
class Wiki:
    """A wiki, and how its markup becomes text. Made once a process, used for every page.

    Attributes:
        namespaces: names of the namespaces of files and categories.
        language: the wiki's code, such as `zh`.
        site: the wiki's name, which `{{SITENAME}}` shows.
        today: the dump's date, which `{{CURRENTYEAR}}` and ages are counted from.
        templates: the templates that are rendered without being expanded.
        library: wikitext of the wiki's own templates by name, the first letter a capital, without
            the namespace; redirects are followed.
        tables: tables become a line a row, or are dropped.
        captions: captions of images and galleries become lines, or are dropped.
        seconds: the longest that one page may take, of a processor's time.
    """

    namespaces: Namespaces = field(default_factory=Namespaces)
    language: str = "en"
    site: str = "Wikipedia"
    today: date | None = None
    templates: Templates = TEMPLATES
    library: Mapping[str, str] = field(default_factory=dict)
    capitalised: bool = True
    tables: Literal["text", "drop"] = "text"
    captions: Literal["text", "drop"] = "text"
    seconds: float = 30.0


@dataclass(frozen=True)
class Step:
    """What one rule did at one place; both texts are cut to a few hundred characters."""

    rule: str
    before: str
    after: str


@dataclass
class Ledger:
    """What became of a page's markup.

    Attributes:
        lost: characters of wikitext that were dropped, by construct.
        kept: characters that are shown of constructs whose markup is more than a mark.
        templates: dropped templates by name.
        samples: of each dropped template its first call on the page, cut to a few hundred
            characters.
        table_rows: lines of unclosed tables that were dropped.
        unclosed: brackets that never closed, or closed nothing.
        trace: what each rule did, in order, the first few thousand; None where not asked for.
    """

    lost: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    templates: Counter[str] = field(default_factory=Counter)
    samples: dict[str, str] = field(default_factory=dict)
    table_rows: int = 0
    unclosed: int = 0
    trace: list[Step] | None = None

    def drop(self, construct: str, source: str) -> None:
        """A construct of the page shows nothing."""
        self.lost[construct] += len(source)
        if self.trace is not None:
            self.note(construct, source, "")

    def drop_template(self, name: str, source: str) -> None:
        """A template's call shows nothing; `source` is the whole call."""
        if name not in self.templates:
            self.samples[name] = source[:_SAMPLE]
        self.templates[name] += 1
        self.drop("templates", source)

    def keep(self, construct: str, source: str, shown: str, name: str = "") -> None:
        """A construct of the page shows something; `name` tells which of its kind it is."""
        self.kept[construct] += len(shown)
        if self.trace is not None:
            self.note(f"{construct} {name.strip()}".strip(), source, shown)

    def note(self, rule: str, before: str, after: str) -> None:
        """Add to the trace, where one is kept and has room."""
        if self.trace is not None and len(self.trace) < _LONGEST_TRACE:
            self.trace.append(Step(rule, before[:_SAMPLE], after[:_SAMPLE]))


class Deadline:
    """The end of a page's time.

    Args:
        seconds: how long from now, of this thread's own time: what else the machine does must not
            decide which pages stay.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.thread_time() + seconds

    def check(self) -> None:
        """Go on, if there is time left.

        Raises:
            PageTimeout: there is none.
        """
        if time.thread_time() > self._end:
            raise PageTimeout(
                "The page takes too long", where="its markup",
                expected=f"at most {self._seconds:g} s", got="more",
                fix="raise clean.page_seconds; a run names the page and goes on without it",
            )  # fmt: skip


def _lower(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower().replace("_", " ") for name in names)
