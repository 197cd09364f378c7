"""What a dump says of its wiki and of a page, from their XML."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from tasks.clean.names import CANONICAL, is_redirect
from tasks.core.errors import InputError

NoArticle = Literal["other_namespaces", "redirects", "other_models", "without_text"]

TEMPLATE = 10
_TITLE = re.compile(rb"<title>([^<]{1,1000})</title>")
_TIMESTAMP = re.compile(rb"<timestamp>(\d{4}-\d\d-\d\d)T")
_DATE = re.compile(r"(?<!\d)(20\d\d)(\d\d)(\d\d)(?!\d)")


@dataclass(frozen=True)
class Site:
    """What the dump says of its wiki.

    Attributes:
        language: the wiki's code, such as `en`.
        base: address of a page without its title, such as `https://en.wikipedia.org/wiki/`.
        name: such as `Wikipedia`.
        namespaces: numbers and the wiki's own names.
        capitalised: the first letter of a template's title is always a capital.
    """

    language: str = "en"
    base: str = ""
    name: str = "Wikipedia"
    namespaces: tuple[tuple[int, str], ...] = ()
    capitalised: bool = True

    @property
    def hidden(self) -> list[str]:
        """The wiki's own names of the namespaces whose links show nothing."""
        return [name for key, name in self.namespaces if key in (-2, 6, 14) and name]

    @property
    def files(self) -> list[str]:
        """The wiki's own name of the namespace of files."""
        return [name for key, name in self.namespaces if key == 6 and name]

    def namespace_of(self, title: str) -> int:
        """The namespace that a title's prefix names; 0 where it names none."""
        prefix = title.partition(":")[0]
        names = (*self.namespaces, *CANONICAL)
        return next((key for key, name in names if name == prefix != title), 0)

    def url(self, title: str) -> str:
        """The address of a page; empty where the dump does not say where its wiki is."""
        if not self.base:
            return ""
        return self.base + quote(title.replace(" ", "_"), safe="/:@!$&'()*,;=~")


@dataclass(frozen=True)
class Page:
    """One page of a dump; ids as they are written there."""

    id: str
    title: str
    namespace: int
    redirect: bool
    model: str
    revision: str
    text: str

    @property
    def no_article(self) -> NoArticle | None:
        """Why the page is no article with a text; None where it is one."""
        if self.namespace != 0:
            return "other_namespaces"
        if self.redirect:
            return "redirects"
        if self.model != "wikitext":
            return "other_models"
        return None if self.text.strip() else "without_text"


def read_page(source: bytes, site: Site) -> Page:
    """A page from its XML.

    Raises:
        InputError: it holds several revisions.
        SyntaxError: it is no XML.
    """
    from lxml import etree

    if not source.endswith(b"</page>"):
        raise SyntaxError("the page does not end, or is longer than any page may be")
    element = etree.fromstring(source, _parser())
    title = element.findtext("title") or ""
    if element.find("revision[2]") is not None:
        raise history("the dump", f"several revisions of {title!r}")
    namespace = element.findtext("ns") or ""
    # The oldest dumps name no namespace, and mark no redirect.
    numbered = namespace.lstrip("-").isdigit()
    text = element.findtext("revision/text") or ""
    return Page(
        id=element.findtext("id") or "",
        title=title,
        namespace=int(namespace) if numbered else site.namespace_of(title),
        redirect=element.find("redirect") is not None or is_redirect(text),
        model=element.findtext("revision/model") or "wikitext",
        revision=element.findtext("revision/id") or "",
        text=text,
    )


def is_template(source: bytes) -> bool:
    """Whether a page's XML may be a template's, without parsing it."""
    return b"<ns>10</ns>" in source or b"<ns>" not in source


def title_of(source: bytes) -> str:
    """The title of a page that may be no XML; empty where there is none."""
    found = _TITLE.search(source)
    return html.unescape(found[1].decode("utf-8", "replace")) if found else ""


def day_of(source: bytes) -> date | None:
    """The day of a page's revision."""
    found = _TIMESTAMP.search(source)
    try:
        return date.fromisoformat(found[1].decode()) if found else None
    except ValueError:
        return None


def day_in(name: str) -> date | None:
    """The day in the name of a dump, such as `enwiki-20260901-pages-articles.xml.bz2`."""
    for year, month, day in _DATE.findall(name):
        try:
            return date(int(year), int(month), int(day))
        except ValueError:
            continue
    return None


def read_site(head: bytes, path: Path) -> Site:
    """A wiki from what stands before the first page.

    Raises:
        InputError: it is no XML.
    """
    from lxml import etree

    try:
        root = etree.fromstring(head + b"</mediawiki>", _parser())
    except etree.XMLSyntaxError as error:
        raise InputError(
            "The head of the dump cannot be read", where=path, got=error,
            expected="XML before the first <page>", fix="fetch the dump again",
        ) from error  # fmt: skip
    spaces = {
        int(found.get("key")): found
        for found in root.findall("{*}siteinfo/{*}namespaces/{*}namespace")
        if (found.get("key") or "").lstrip("-").isdecimal()
    }
    case = root.findtext("{*}siteinfo/{*}case")
    if TEMPLATE in spaces:
        case = spaces[TEMPLATE].get("case") or case
    base = (root.findtext("{*}siteinfo/{*}base") or "").rpartition("/")[0]
    return Site(
        language=root.get("{http://www.w3.org/XML/1998/namespace}lang") or "en",
        base=f"{base}/" if base else "",
        name=root.findtext("{*}siteinfo/{*}sitename") or "Wikipedia",
        namespaces=tuple((key, found.text or "") for key, found in spaces.items()),
        capitalised=case != "case-sensitive",
    )


def history(where: object, got: str) -> InputError:
    """The error for a dump of many revisions of a page."""
    return InputError(
        "This dump holds the history of its pages, and not their text", where=where,
        expected="a pages-articles dump: one revision of each page", got=got,
        fix="name a pages-articles dump, as https://dumps.wikimedia.org offers",
    )  # fmt: skip


@cache
def _parser() -> Any:
    from lxml import etree

    # Entities stay unexpanded and nothing is fetched: a dump is a stranger's file.
    return etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True)
