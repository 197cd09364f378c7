"""Where every page and every character went: what a run's report is made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tasks.clean.boilerplate import Dropped
from tasks.clean.filters import FILTERS, Verdict
from tasks.clean.residue import paragraphs_with_residue, residue
from tasks.clean.rules import Account
from tasks.clean.samples import MOST_SAMPLES, Named, Sample, Samples
from tasks.clean.wiki import Ledger

_CUT = 300
_TEMPLATES_LISTED = 100
# Samples of rare templates go first; the counts of all stay.
_MOST_TEMPLATE_SAMPLES = 20_000
_CONTAMINATED_LISTED = 1_000
_SOURCES_LISTED = 1_000
# Names of templates are the writers', and there is no end of misspelt ones.
_MOST_TEMPLATES = 200_000


@dataclass
class Counts:
    """Where every page went. `pages` is the sum of the fields up to `set_aside`.

    Attributes:
        pages: pages of the dump.
        articles: documents that were written.
        redirects: pages that lead to another.
        other_namespaces: pages that are no articles.
        other_models: articles that are no wikitext.
        without_text: articles of which the dump holds no text.
        empty: articles of which no text was left.
        filtered: documents dropped, by filter.
        contaminated: documents dropped for what they share with an evaluation set.
        duplicates: documents dropped for one that stands before them, by kind.
        sources: the corpus's files.
        pages_by_source: pages of each.
        articles_by_source: documents that were written of each.
        duplicates_across: how many of these repeat a document of another source file.
        timed_out: articles that took too long.
        set_aside: pages that could not be read or cleaned.
        damage: where a dump ends early.
        characters_in: characters of wikitext.
        characters_out: characters of the documents.
        dropped: characters of documents dropped, by reason, as they were when they were.
        kept: characters shown of constructs whose markup is more than a mark.
        lost: characters of wikitext dropped, by construct.
        rules: what was done to texts, by rule.
        rule_characters: characters that this took away.
        samples: the first few of each rule, filter and kind of residue.
        templates: dropped templates.
        rare_templates: dropped calls of names that were too rare to be held.
        template_samples: a call of each.
        contamination: documents that share something with an evaluation set.
        hits: how many, by set.
        too_short: by set, how many items are too short to be found.
        paragraphs: lines of the documents.
        paragraphs_with_residue: those in which markup is left.
        residue: how often, by kind.
        lengths: documents by the power of two that their characters reach.
        languages: documents by language.
        table_rows: lines of unclosed tables that were dropped.
        unclosed: brackets that never closed, or closed nothing.
    """

    pages: int = 0
    articles: int = 0
    redirects: int = 0
    other_namespaces: int = 0
    other_models: int = 0
    without_text: int = 0
    empty: int = 0
    filtered: Counter[str] = field(default_factory=Counter)
    contaminated: int = 0
    duplicates: Counter[str] = field(default_factory=Counter)
    sources: list[str] = field(default_factory=list)
    pages_by_source: Counter[str] = field(default_factory=Counter)
    articles_by_source: Counter[str] = field(default_factory=Counter)
    duplicates_across: int = 0
    timed_out: Named = field(default_factory=Named)
    set_aside: Named = field(default_factory=Named)
    damage: list[str] = field(default_factory=list)
    characters_in: int = 0
    characters_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    rule_characters: Counter[str] = field(default_factory=Counter)
    samples: Samples = field(default_factory=Samples)
    templates: Counter[str] = field(default_factory=Counter)
    rare_templates: int = 0
    template_samples: dict[str, Sample] = field(default_factory=dict)
    contamination: list[Sample] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    too_short: Counter[str] = field(default_factory=Counter)
    paragraphs: int = 0
    paragraphs_with_residue: int = 0
    residue: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    table_rows: int = 0
    unclosed: int = 0

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Counts:
        """Counts from their `state`, also where that has been written as JSON."""
        counts = cls()
        for name, value in state.items():
            kind = type(getattr(counts, name))
            setattr(counts, name, Named(**value) if kind is Named else kind(value))
        counts.lengths = Counter({int(length): count for length, count in counts.lengths.items()})
        return counts

    def state(self) -> dict[str, Any]:
        """All of it, as JSON can write it."""
        return {
            name: vars(value) if isinstance(value, Named) else value
            for name, value in vars(self).items()
        }

    def add(self, other: Counts) -> None:
        """Add another's counts to these; its pages come behind."""
        for name, value in vars(other).items():
            mine = getattr(self, name)
            if isinstance(value, int):
                setattr(self, name, mine + value)
            elif isinstance(value, list):
                mine += value
            elif isinstance(value, Samples | Named):
                mine.update_from(value)
            elif isinstance(value, Counter):
                mine.update(value)
            else:
                for key, sample in value.items():
                    mine.setdefault(key, sample)
        self._bound()

    def note_markup(self, ledger: Ledger, title: str) -> None:
        """Add what became of a page's markup."""
        self.kept.update(ledger.kept)
        self.lost.update(ledger.lost)
        self.templates.update(ledger.templates)
        for name, call in ledger.samples.items():
            self.template_samples.setdefault(name, {"title": title, "text": call})
        self.table_rows += ledger.table_rows
        self.unclosed += ledger.unclosed

    def note_rules(self, account: Account, title: str) -> None:
        """Add what the rules did to a text."""
        self.rules.update(account.done)
        self.rule_characters.update(account.lost)
        for rule, sample in account.samples.items():
            self.samples.note(rule, {"title": title, "text": sample})

    def note_verdict(self, verdict: Verdict, title: str, text: str) -> None:
        """Add a document that a filter dropped."""
        self.filtered[verdict.rule] += 1
        self.dropped[verdict.rule] += len(text)
        measured = {"value": verdict.value, "limit": verdict.limit, "note": verdict.note}
        self.samples.note(verdict.rule, {"title": title, "text": text[:_CUT], **measured})

    def note_dropped(self, dropped: Dropped, title: str) -> None:
        """Add a line that goes because it repeats another, or stood above such alone."""
        self.rules[dropped.rule] += 1
        self.rule_characters[dropped.rule] += len(dropped.line) + 1
        self.samples.note(dropped.rule, {"title": title, "text": dropped.line[:_CUT]})

    def note_page(self, source: str) -> None:
        """Add a page or row, whatever becomes of it."""
        self.pages += 1
        self.pages_by_source[source] += 1

    def note_document(self, text: str, title: str, language: str, source: str) -> None:
        """Add a document that is written."""
        self.articles += 1
        self.articles_by_source[source] += 1
        self.characters_out += len(text)
        self.paragraphs += text.count("\n") + 1
        self.languages[language] += 1
        self.lengths[1 << len(text).bit_length() - 1] += 1
        if found := residue(text):
            self.residue.update(found)
            lines = paragraphs_with_residue(text)
            self.paragraphs_with_residue += len(lines)
            for line in lines[:MOST_SAMPLES]:
                self.samples.note("residue", {"title": title, "text": line[:_CUT]})

    def whereabouts(self) -> dict[str, int]:
        """Pages by what became of them; together they are all pages."""
        plain = ("articles", "redirects", "other_namespaces", "other_models", "without_text")
        return {
            **{name: getattr(self, name) for name in (*plain, "empty")},
            **{name: self.filtered[name] for name in {**FILTERS, **self.filtered}},
            "contaminated": self.contaminated,
            **{name: self.duplicates[name] for name in ("duplicate", "near_duplicate")},
            "timed_out": self.timed_out.count,
            "set_aside": self.set_aside.count,
        }

    def _bound(self) -> None:
        del self.contamination[_CONTAMINATED_LISTED:]
        if len(self.templates) > _MOST_TEMPLATES:
            held = Counter(dict(_in_order(self.templates)[: _MOST_TEMPLATES // 2]))
            self.rare_templates += self.templates.total() - held.total()
            self.templates = held
        if len(self.template_samples) > _MOST_TEMPLATE_SAMPLES:
            common = _in_order(self.templates)[: _MOST_TEMPLATE_SAMPLES // 2]
            self.template_samples = {
                name: self.template_samples[name]
                for name, _ in common
                if name in self.template_samples
            }

    def as_json(self) -> dict[str, Any]:
        """The report: plain values in a stable order."""
        return {
            "pages": self.pages,
            "whereabouts": self.whereabouts(),
            "timed_out": self.timed_out.pages,
            "set_aside": self.set_aside.pages,
            "sources": self._by_source(),
            "duplicates_across_sources": self.duplicates_across,
            "damage": self.damage,
            "characters": self._characters(),
            "rules": {
                name: {"times": count, "characters": self.rule_characters[name]}
                for name, count in _in_order(self.rules)
            },
            "samples": {name: self.samples[name] for name in sorted(self.samples)},
            "templates": self._most_dropped(),
            "contamination": {
                "sets": dict(_in_order(self.hits)),
                "too_short": dict(self.too_short),
                "documents": self.contamination,
            },
            "residue": {
                "paragraphs": self.paragraphs,
                "paragraphs_with_residue": self.paragraphs_with_residue,
                "by_kind": dict(_in_order(self.residue)),
            },
            "lengths": {str(length): self.lengths[length] for length in sorted(self.lengths)},
            "languages": dict(_in_order(self.languages)),
        }

    def _by_source(self) -> dict[str, Any]:
        pages, articles = self.pages_by_source, self.articles_by_source
        return {
            "files": len(self.sources),
            "without_articles": sum(not articles[name] for name in self.sources),
            "first": [
                {"name": name, "pages": pages[name], "articles": articles[name]}
                for name in self.sources[:_SOURCES_LISTED]
            ],
        }

    def _characters(self) -> dict[str, Any]:
        return {
            "in": self.characters_in,
            "out": self.characters_out,
            "dropped": dict(_in_order(self.dropped)),
            "kept": dict(_in_order(self.kept)),
            "lost": dict(_in_order(self.lost)),
            "table_rows": self.table_rows,
            "unclosed": self.unclosed,
        }

    def _most_dropped(self) -> dict[str, Any]:
        return {
            "dropped": self.templates.total() + self.rare_templates,
            "names": len(self.templates),
            "most": [
                {"name": name, "times": count, "sample": self.template_samples.get(name)}
                for name, count in _in_order(self.templates)[:_TEMPLATES_LISTED]
            ],
        }


def _in_order(counter: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))
