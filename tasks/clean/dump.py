"""MediaWiki XML dumps as a stream of pages, in bounded memory.

A dump is cut at the ends of its pages before anything is parsed: a page that is no XML costs only
itself, and the cutting is all that must happen in one process.
"""

from __future__ import annotations

import codecs
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from tasks.clean.streams import pieces
from tasks.core.errors import InputError

NoArticle = Literal["other_namespaces", "redirects", "other_models", "without_text"]

TEMPLATE = 10
_LONGEST_HEAD = 4096
_LONGEST_SITE = 1 << 20
# MediaWiki's own limit is 2 MB of wikitext.
_LONGEST_PAGE = 1 << 26
# Before the root element only a declaration and comments: above all no DOCTYPE, for a page-sized
# file may define entities that expand without end.
_HEAD = re.compile(rb"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--[^>]{0,2000}-->\s*)?<mediawiki[\s>]")
_ENCODING = re.compile(rb"\s*<\?xml[^>]{0,200}encoding=[\"']([A-Za-z0-9._-]{1,40})[\"']")
_OPENING = re.compile(rb"<page(?=[\s>])")
_CLOSING = b"</page>"
_TITLE = re.compile(rb"<title>([^<]{1,1000})</title>")
_TIMESTAMP = re.compile(rb"<timestamp>(\d{4}-\d\d-\d\d)T")
_DATE = re.compile(r"(?<!\d)(20\d\d)(\d\d)(\d\d)(?!\d)")
_HISTORY = re.compile(r"meta-history|stub-|\bhistory\d*\.xml")
_DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error)


@dataclass(frozen=True)
class Site:
    """What the dump says of its wiki.

    Attributes:
        language: the wiki's code, such as `en`.
        base: address of a page without its title, such as `https://en.wikipedia.org/wiki/`.
        name: such as `Wikipedia`.
        namespaces: numbers and the wiki's own names.
    """

    language: str = "en"
    base: str = ""
    name: str = "Wikipedia"
    namespaces: tuple[tuple[int, str], ...] = ()

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
        return next((key for key, name in self.namespaces if name == prefix != title), 0)

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


class Dump:
    """A dump's pages, read once and in order.

    Args:
        path: plain XML, or compressed with bz2 (also of many streams), gz, xz or zst.
        on_damage: what to do where the file ends early or is broken: "error" raises, "keep" ends
            the stream with the last whole page and says so in `damage`.
        progress: called with the bytes of the file that have been read.
        threads: how many decompress a bz2 file of many streams.
    """

    def __init__(
        self,
        path: Path,
        on_damage: Literal["error", "keep"] = "error",
        progress: Callable[[int], None] | None = None,
        threads: int = 1,
    ) -> None:
        self.path = path
        self.site = Site()
        self.damage: str | None = None
        self.pages = 0
        self._keep = on_damage == "keep"
        self._progress = progress
        self._threads = threads

    def __iter__(self) -> Iterator[Page]:
        """Yield the pages.

        Raises:
            InputError: see `raw`; or a page holds several revisions.
            SyntaxError: a page is no XML.
        """
        return (read_page(page, self.site) for page in self.raw())

    def raw(self) -> Iterator[bytes]:
        """Yield each page's XML in UTF-8, as `read_page` takes it.

        Raises:
            ConfigError: it is compressed with zst, and the package for that is missing.
            InputError: no MediaWiki dump, or one of a page's whole history; no page in it; damaged,
                and `on_damage` is "error".
        """
        if _HISTORY.search(self.path.name):
            raise _history(self.path, self.path.name)
        rest = b""
        try:
            for piece in self._pieces():
                rest += piece
                if self.pages == 0 and not self._begins(rest):
                    continue
                *whole, rest = rest.split(_CLOSING)
                while whole:
                    yield from self._opened(whole.pop(0))
                if len(rest) > _LONGEST_PAGE:
                    raise EOFError(f"no page ends within {_LONGEST_PAGE >> 20} MiB")
            if self.pages == 0:
                self._require_head(rest)
            if b"</mediawiki" not in rest:
                raise EOFError("the XML does not end")
        except _DAMAGE as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            self._damaged(error)
        if self.pages == 0:
            raise InputError(
                "The dump holds no page", where=self.path, expected="<page> elements", got="none",
                fix="name a pages-articles dump",
            )  # fmt: skip

    def _begins(self, head: bytes) -> bool:
        """Read what stands before the first page, once that is there."""
        opening = _OPENING.search(head)
        if opening or len(head) >= _LONGEST_HEAD:
            self._require_head(head)
        if opening:
            self.site = _site(head[: opening.start()], self.path)
        elif len(head) > _LONGEST_SITE:
            raise EOFError(f"no page begins within {_LONGEST_SITE >> 10} KiB")
        return opening is not None

    def _require_head(self, head: bytes) -> None:
        if not _HEAD.match(head):
            raise InputError(
                "This is no MediaWiki dump", where=self.path,
                expected="XML whose root element is <mediawiki>", got=repr(head[:40]),
                fix="name a pages-articles dump, as https://dumps.wikimedia.org offers",
            )  # fmt: skip

    def _opened(self, source: bytes) -> Iterator[bytes]:
        """What stands before a closing tag: a page, behind those that never closed.

        Without an opening tag it is no page, either; the reader will say so.
        """
        _, *found = _OPENING.split(source)
        pages = [b"<page" + text for text in found] or [source]
        pages[-1] += _CLOSING
        self.pages += len(pages)
        yield from pages

    def _pieces(self) -> Iterator[bytes]:
        decode = None
        for piece, done in pieces(self.path, self._threads):
            if decode is None:
                decode = _decoder(piece)
                piece = piece.removeprefix(codecs.BOM_UTF8)
            yield decode(piece)
            if self._progress:
                self._progress(done)

    def _damaged(self, error: Exception) -> None:
        self.damage = f"after {self.pages} whole pages: {type(error).__name__}: {error}"
        if not self._keep or self.pages == 0:
            raise InputError(
                "The dump is damaged or ends early", where=self.path,
                expected="a whole file", got=self.damage,
                fix="fetch it again, or keep the pages before the damage: clean.on_damage=keep",
            ) from error  # fmt: skip


def read_page(source: bytes, site: Site) -> Page:
    """A page from its XML.

    Raises:
        InputError: it holds several revisions.
        SyntaxError: it is no XML.
    """
    from lxml import etree

    element = etree.fromstring(source, _parser())
    title = element.findtext("title") or ""
    if element.find("revision[2]") is not None:
        raise _history("the dump", f"several revisions of {title!r}")
    namespace = element.findtext("ns") or ""
    # The oldest dumps name no namespace.
    numbered = namespace.lstrip("-").isdigit()
    return Page(
        id=element.findtext("id") or "",
        title=title,
        namespace=int(namespace) if numbered else site.namespace_of(title),
        redirect=element.find("redirect") is not None,
        model=element.findtext("revision/model") or "wikitext",
        revision=element.findtext("revision/id") or "",
        text=element.findtext("revision/text") or "",
    )


def is_template(source: bytes) -> bool:
    """Whether a page's XML may be a template's, without parsing it."""
    return b"<ns>10</ns>" in source or b"<ns>" not in source


def title_of(source: bytes) -> str:
    """The title of a page that may be no XML; empty where there is none."""
    found = _TITLE.search(source)
    return found[1].decode("utf-8", "replace") if found else ""


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


def _site(head: bytes, path: Path) -> Site:
    from lxml import etree

    try:
        root = etree.fromstring(head + b"</mediawiki>", _parser())
    except etree.XMLSyntaxError as error:
        raise InputError(
            "The head of the dump cannot be read", where=path, got=error,
            expected="XML before the first <page>", fix="fetch the dump again",
        ) from error  # fmt: skip
    names = [
        (int(found.get("key")), found.text or "")
        for found in root.findall("{*}siteinfo/{*}namespaces/{*}namespace")
        if (found.get("key") or "").lstrip("-").isdecimal()
    ]
    base = (root.findtext("{*}siteinfo/{*}base") or "").rpartition("/")[0]
    return Site(
        language=root.get("{http://www.w3.org/XML/1998/namespace}lang") or "en",
        base=f"{base}/" if base else "",
        name=root.findtext("{*}siteinfo/{*}sitename") or "Wikipedia",
        namespaces=tuple(names),
    )


def _decoder(head: bytes) -> Callable[[bytes], bytes]:
    """What turns the dump's bytes into UTF-8: nearly always they are, and nothing is done."""
    declared = _ENCODING.match(head)
    name = declared[1].decode().lower() if declared else "utf-8"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        name = "utf-16"
    if name in ("utf-8", "utf8", "us-ascii"):
        return lambda data: data
    try:
        decoder = codecs.getincrementaldecoder(name)("replace")
    except LookupError:
        return lambda data: data
    return lambda data: decoder.decode(data).encode()


@cache
def _parser() -> Any:
    from lxml import etree

    # Entities stay unexpanded and nothing is fetched: a dump is a stranger's file.
    return etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True)


def _history(where: object, got: str) -> InputError:
    return InputError(
        "This dump holds the history of its pages, and not their text", where=where,
        expected="a pages-articles dump: one revision of each page", got=got,
        fix="name a pages-articles dump, as https://dumps.wikimedia.org offers",
    )  # fmt: skip
