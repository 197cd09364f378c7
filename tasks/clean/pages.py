"""One page of a dump, or one row, to one document: its options, and the way it goes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.clean.contamination import EvaluationSets, Hit
from tasks.clean.counts import Counts
from tasks.clean.duplicates import Duplicates
from tasks.clean.evaluation_texts import read_texts, set_names
from tasks.clean.language import identified
from tasks.clean.library import Library
from tasks.clean.mediawiki import Page, Site
from tasks.clean.rows import Fields, Row
from tasks.clean.rules import Account, Rules, apply
from tasks.clean.templates import TEMPLATES, Templates
from tasks.clean.wiki import Namespaces, PageTimeout, Wiki
from tasks.clean.wikitext import Cleaned, clean
from tasks.core import sources
from tasks.core.errors import ConfigError
from tasks.core.fingerprint import Runtime


class Markup(BaseModel):
    """How markup becomes text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    templates: Literal["table", "dump"] = Field(
        "dump",
        description="Templates outside the table: dropped, or expanded as the dump defines them, "
        "for which it is read once more",
    )
    # Enters the fingerprint by what it holds.
    template_table: Annotated[str | None, Runtime] = Field(
        None, description="A file of rules for more templates, in the form of the built-in table"
    )
    tables: Literal["text", "drop"] = Field("text", description="Tables: a line a row, or nothing")
    captions: Literal["text", "drop"] = Field(
        "text", description="Captions of images and galleries: lines, or nothing"
    )
    page_seconds: float = Field(
        30.0,
        gt=0,
        description="A page that takes longer (of processor time) is set aside by name",
    )


class Decontamination(BaseModel):
    """Evaluation sets that the corpus must not hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    evaluation_sets: Annotated[tuple[str, ...], Runtime] = Field(
        (), description="Files of evaluation items: JSON lines (all text of a row), or a line each"
    )
    evaluation_words: int = Field(
        13, ge=3, description="Words in a row that make a document hold an item; GPT-3's is 13"
    )
    contaminated: Literal["drop", "keep"] = Field(
        "drop", description="Documents that hold a piece of an evaluation set; both are listed"
    )


class Options(Rules, Duplicates, Markup, Decontamination, Fields):
    """All that bears on a document."""


@dataclass(frozen=True)
class Origin:
    """What is known of the file that a page or row is from.

    Attributes:
        site: a dump's wiki; of rows only the language of those that do not say theirs.
        today: a dump's date.
        library: the file with a dump's templates.
    """

    site: Site
    today: date | None = None
    library: Path | None = None


@dataclass
class Document:
    """A page's or a row's document, and how it came to be.

    Attributes:
        page: what it was made from.
        url: the page's address.
        text: what is left of it.
        language: the identified one where the recipe names languages, else the wiki's or the row's.
        cleaned: what became of its markup.
        account: what the rules did.
        hits: what it shares with evaluation sets.
    """

    page: Page
    url: str
    text: str
    language: str
    cleaned: Cleaned
    account: Account
    hits: list[Hit]

    def record(self) -> dict[str, str]:
        """The document as it is written."""
        return {
            "id": self.page.id,
            "url": self.url,
            "title": self.page.title,
            "language": self.language,
            "text": self.text,
            "revision": self.page.revision,
        }


class Cleaner:
    """What takes a file's articles or rows through markup, rules, filters and evaluation sets.

    Args:
        origin: the file.
        options: what to do.

    Raises:
        ConfigError: a table of templates or an evaluation set cannot be read.
        InputError: it is not there.
    """

    def __init__(self, origin: Origin, options: Options) -> None:
        site = origin.site
        self.options = options
        self._site = site
        self._sets = _evaluation_sets(options) if options.evaluation_sets else None
        self._wiki = Wiki(
            namespaces=Namespaces.of(site.hidden, site.files),
            language=site.language,
            site=site.name,
            today=origin.today,
            templates=_templates(options.template_table),
            library={} if origin.library is None else Library(origin.library),
            capitalised=site.capitalised,
            tables=options.tables,
            captions=options.captions,
            seconds=options.page_seconds,
        )

    @property
    def too_short(self) -> dict[str, int]:
        """By evaluation set, how many items are too short to be found."""
        return self._sets.too_short if self._sets else {}

    def document(self, page: Page, *, trace: bool = False) -> Document:
        """An article's document, whether it stays or not.

        Raises:
            PageTimeout: the page takes longer than it may.
        """
        cleaned = clean(page.text, self._wiki, page.title, trace=trace)
        return self._ruled(page, self._site.url(page.title), self._site.language, cleaned)

    def row(self, row: Row) -> Document:
        """A row's document, whether it stays or not. It has no markup."""
        page = Page(row.id, row.title, 0, False, "text", row.revision, row.text)
        language = row.language or self._named(row.text, self._site.language)
        return self._ruled(page, row.url, language, Cleaned(text=row.text.strip()))

    def article(self, page: Page | Row, counts: Counts) -> Document | None:
        """An article's or a row's document where it stays; where not, the counts say why."""
        try:
            found = self.row(page) if isinstance(page, Row) else self.document(page)
        except PageTimeout:
            counts.timed_out.note({"id": page.id, "title": page.title})
            return None
        counts.characters_in += len(page.text)
        # A row may have no title.
        name = page.title or page.id
        counts.note_markup(found.cleaned, name)
        counts.note_rules(found.account, name)
        if not found.text:
            counts.empty += 1
            return None
        if found.account.verdict is not None:
            counts.note_verdict(found.account.verdict, name, found.text)
            return None
        for hit in found.hits:
            counts.hits[hit.name] += 1
            counts.contamination.append({"id": page.id, "title": page.title, **hit._asdict()})
        if found.hits and self.options.contaminated == "drop":
            counts.contaminated += 1
            counts.dropped["contaminated"] += len(found.text)
            return None
        return found

    def _ruled(self, page: Page, url: str, language: str, cleaned: Cleaned) -> Document:
        text, account = apply(cleaned.text, language, self.options)
        language = self._named(text, language)
        stays = text and account.verdict is None
        hits = self._sets.hits(text) if self._sets and stays else []
        return Document(page, url, text, language, cleaned, account, hits)

    def _named(self, text: str, language: str) -> str:
        """The language identified where the recipe asks for it, else the one that is given."""
        if not text or self.options.language == "keep":
            return language
        return identified(text, language, self.options.min_language_confidence)


@lru_cache(maxsize=1)
def cleaner(origin: Origin, options: Options, run: Path) -> Cleaner:
    """The cleaner of a file, made once a process.

    Args:
        origin: the file.
        options: what to do.
        run: the folder of the run. A worker on a cluster outlives it, and in the next one a table
            or a set of the same name may hold something else.
    """
    return Cleaner(origin, options)


def _evaluation_sets(options: Decontamination) -> EvaluationSets:
    names = set_names(options.evaluation_sets)
    texts = {name: read_texts(path) for name, path in names.items()}
    return EvaluationSets(texts, options.evaluation_words)


def _templates(table: str | None) -> Templates:
    if table is None:
        return TEMPLATES
    path = sources.locate(table)
    try:
        return TEMPLATES.extended(path.read_text(encoding="utf-8-sig"), path.name)
    except UnicodeDecodeError as error:
        raise ConfigError(
            "The table of templates is no text", where=path, got=error,
            expected="lines in UTF-8: `name, name => what is shown`",
            fix="save it as UTF-8; tasks/clean/templates.txt says how a rule is written",
        ) from error  # fmt: skip
