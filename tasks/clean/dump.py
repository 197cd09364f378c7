"""MediaWiki XML dumps as a stream of pages, in bounded memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from tasks.core.errors import InputError
from tasks.core.sources import compression

_PIECE = 1 << 18
_LONGEST_HEAD = 4096
# Before the root element only a declaration and comments: above all no DOCTYPE, for a page-sized
# file may define entities that expand without end.
_HEAD = re.compile(rb"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--[^>]{0,2000}-->\s*)?<mediawiki[\s>]")
_OPENERS: dict[str, Callable[..., Any]] = {
    "bz2": bz2.open, "gz": gzip.open, "xz": lzma.open,
}  # fmt: skip


@dataclass(frozen=True)
class Site:
    """What the dump says of its wiki.

    Attributes:
        language: the wiki's code, such as `en`.
        base: address of a page without its title, such as `https://en.wikipedia.org/wiki/`.
        namespaces: the wiki's own names by number.
    """

    language: str = "en"
    base: str = ""
    namespaces: dict[int, str] = field(default_factory=dict)

    @property
    def hidden(self) -> list[str]:
        """The wiki's own names of the namespaces whose links show nothing."""
        return [self.namespaces[key] for key in (-2, 6, 14) if self.namespaces.get(key)]

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


class Dump:
    """A dump's pages, read once and in order.

    Args:
        path: plain XML, or compressed with bz2 (also of many streams), gz or xz.
        on_damage: what to do where the file ends early or is broken: "error" raises, "keep" ends
            the stream with the last whole page and says so in `damage`.
        progress: called with the bytes of the file that have been read.
    """

    def __init__(
        self,
        path: Path,
        on_damage: Literal["error", "keep"] = "error",
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.path = path
        self.site = Site()
        self.damage: str | None = None
        self.pages = 0
        self._keep = on_damage == "keep"
        self._progress = progress

    def __iter__(self) -> Iterator[Page]:
        """Yield the pages.

        Raises:
            InputError: no MediaWiki dump; no page in it; damaged, and `on_damage` is "error".
        """
        from lxml import etree

        # Entities stay unexpanded and nothing is fetched: a dump is a stranger's file.
        parser = etree.XMLPullParser(
            events=("end",),
            tag=("{*}page", "{*}siteinfo"),
            resolve_entities=False,
            no_network=True,
            huge_tree=True,
        )
        try:
            for piece in self._pieces():
                parser.feed(piece)
                yield from self._drain(parser)
            parser.close()
        except (EOFError, OSError, lzma.LZMAError, zlib.error, etree.XMLSyntaxError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            # Pages that were whole before the damage are still waiting in the parser.
            yield from self._drain(parser)
            self._damaged(error)
        if self.pages == 0:
            raise InputError(
                "The dump holds no page", where=self.path, expected="<page> elements", got="none",
                fix="name a pages-articles dump",
            )  # fmt: skip

    def _pieces(self) -> Iterator[bytes]:
        kind = compression(self.path)
        with open(self.path, "rb") as raw:
            stream: Any = raw if kind == "none" else _OPENERS[kind](raw)
            head = b""
            # Only `read1` hands over what lies before the end of a file that ends early.
            while len(head) < _LONGEST_HEAD and (piece := stream.read1(_PIECE)):
                head += piece
            head = head.removeprefix(codecs.BOM_UTF8)
            if not _HEAD.match(_utf8(head)):
                raise InputError(
                    "This is no MediaWiki dump", where=self.path,
                    expected="XML whose root element is <mediawiki>", got=repr(head[:40]),
                    fix="name a pages-articles dump, as https://dumps.wikimedia.org offers",
                )  # fmt: skip
            piece = head
            while piece:
                yield piece
                if self._progress:
                    self._progress(raw.tell())
                piece = stream.read1(_PIECE)

    def _drain(self, parser: Any) -> Iterator[Page]:
        for _, element in parser.read_events():
            if element.tag.endswith("siteinfo"):
                self.site = _site(element)
                continue
            page = _page(element)
            element.clear()
            while element.getprevious() is not None:
                del element.getparent()[0]
            self.pages += 1
            yield page

    def _damaged(self, error: Exception) -> None:
        self.damage = f"after {self.pages} whole pages: {type(error).__name__}: {error}"
        if not self._keep:
            raise InputError(
                "The dump is damaged or ends early", where=self.path,
                expected="a whole file", got=self.damage,
                fix="fetch it again, or keep the pages before the damage: clean.on_damage=keep",
            ) from error  # fmt: skip


def _utf8(head: bytes) -> bytes:
    """The head in UTF-8; dumps that an editor has saved may be in UTF-16, which lxml reads."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return head.decode("utf-16", "ignore").encode("utf-8", "ignore")
    return head


def _site(element: Any) -> Site:
    names = {
        int(item.get("key")): item.text or ""
        for item in element.findall("{*}namespaces/{*}namespace")
    }
    language = element.getparent().get("{http://www.w3.org/XML/1998/namespace}lang") or "en"
    base = (element.findtext("{*}base") or "").rpartition("/")[0]
    return Site(language, f"{base}/" if base else "", names)


def _page(element: Any) -> Page:
    namespace = element.findtext("{*}ns") or "0"
    return Page(
        id=element.findtext("{*}id") or "",
        title=element.findtext("{*}title") or "",
        namespace=int(namespace) if namespace.lstrip("-").isdigit() else 0,
        redirect=element.find("{*}redirect") is not None,
        model=element.findtext("{*}revision/{*}model") or "wikitext",
        revision=element.findtext("{*}revision/{*}id") or "",
        text=element.findtext("{*}revision/{*}text") or "",
    )
