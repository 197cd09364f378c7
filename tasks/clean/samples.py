"""The first few of what a report shows: pieces of text by name, and pages of one fate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MOST_SAMPLES = 5
_PAGES_NAMED = 1_000

Sample = dict[str, Any]


class Samples(dict[str, list[Sample]]):
    """The first few of each name, in the order of the corpus."""

    def note(self, name: str, sample: Sample) -> None:
        """Keep a sample, where there is room for one."""
        kept = self.setdefault(name, [])
        if len(kept) < MOST_SAMPLES:
            kept.append(sample)

    def update_from(self, other: Samples) -> None:
        """Keep another's samples behind these."""
        for name, samples in other.items():
            for sample in samples:
                self.note(name, sample)


@dataclass
class Named:
    """Pages of one fate: how many, and the first of them by name."""

    count: int = 0
    pages: list[Sample] = field(default_factory=list)

    def note(self, page: Sample) -> None:
        """Add a page."""
        self.count += 1
        if len(self.pages) < _PAGES_NAMED:
            self.pages.append(page)

    def update_from(self, other: Named) -> None:
        """Add another's pages behind these."""
        self.pages += other.pages[: _PAGES_NAMED - len(self.pages)]
        self.count += other.count
