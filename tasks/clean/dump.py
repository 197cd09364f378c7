"""MediaWiki XML dumps as a stream of pages, in bounded memory.

A dump is cut at the ends of its pages before anything is parsed: a page that is no XML costs only
itself, and the cutting is all that must happen in one process.
"""

from __future__ import annotations

import codecs
import lzma
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Literal

from tasks.clean.mediawiki import Site, history, read_site
from tasks.clean.raw import Raw
from tasks.core.errors import InputError
from tasks.core.streams import pieces

_LONGEST_HEAD = 4096
_LONGEST_SITE = 1 << 20
# MediaWiki's own limit is 2 MB of wikitext.
_LONGEST_PAGE = 1 << 24
# Longer than any tag that is looked for.
_LONGEST_TAG = 64
# Before the root element only a declaration and comments: above all no DOCTYPE, for a page-sized
# file may define entities that expand without end.
_HEAD = re.compile(rb"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--[^>]{0,2000}-->\s*)?<mediawiki[\s>]")
_ENCODING = re.compile(rb"\s*<\?xml[^>]{0,200}encoding=[\"']([A-Za-z0-9._-]{1,40})[\"']")
_OPENING = re.compile(rb"<page(?=[\s>])")
_CLOSING = b"</page>"
_BOUNDARY = re.compile(rb"</page>|(?=<page[\s>])")
_DECLARATION = re.compile(rb"\s*<\?xml[^>]{0,200}\?>")
# Of what a dump's encoding must leave as it is; no text codec of Python's makes `A` of the escape.
_ASCII = rb"""<page id="09">AZaz&lt;-+./~ \x41</page>"""
_HISTORY = re.compile(r"meta-history|stub-|\bhistory\d*\.xml")
_DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error)


class Dump:
    """A dump's pages, read once and in order.

    Args:
        path: plain XML, or compressed with bz2 (also of many streams), gz, xz or zst.
        on_damage: what to do where the file ends early or is broken: "error" raises, "keep" ends
            the stream with the last whole page and says so in `damage`.
        progress: called with the bytes of the file that have been read.
        threads: how many decompress a bz2 file.
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
        self._read = 0

    def raw(self) -> Iterator[Raw]:
        """Yield each page's XML in UTF-8, as `read_page` takes it.

        Pages lie in the unpacked file from `start` to `stop`. Where that is in UTF-16 or another
        encoding, these are places in the same text in UTF-8, without a byte order mark.

        Raises:
            ConfigError: it is compressed with zst, and the package for that is missing.
            InputError: no MediaWiki dump, or one of a page's whole history; no page in it; damaged,
                and `on_damage` is "error".
        """
        if _HISTORY.search(self.path.name):
            raise history(self.path, self.path.name)
        rest, skips, self._read = b"", False, 0
        try:
            for piece in self._pieces():
                rest += piece
                self._read += len(piece)
                if self.pages == 0 and not self._begins(rest):
                    continue
                if skips:
                    skips, rest = self._skipped(rest)
                start = self._read - len(rest)
                *whole, rest = rest.split(_CLOSING)
                while whole:
                    source = whole.pop(0)
                    yield from self._opened(source, _CLOSING, start)
                    start += len(source) + len(_CLOSING)
                if len(rest) > _LONGEST_PAGE and not skips:
                    skips, rest = yield from self._unclosed(rest)
            if self.pages == 0:
                self._require_head(rest)
            if b"</mediawiki" not in rest:
                raise EOFError("the XML does not end")
        except _DAMAGE as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            self._damaged(error)
        if self.pages == 0 and self.damage is None:
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
            # What it declares is no longer so: these bytes are UTF-8.
            self.site = read_site(_DECLARATION.sub(b"", head[: opening.start()], 1), self.path)
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

    def _skipped(self, rest: bytes) -> tuple[bool, bytes]:
        """Whether a page that is too long goes on, and what is left behind it."""
        found = _BOUNDARY.search(rest)
        return found is None, rest[found.end() :] if found else rest[-_LONGEST_TAG:]

    def _unclosed(self, rest: bytes) -> Generator[Raw, None, tuple[bool, bytes]]:
        """What is too long for a page: pages without an end, the last of which may be the one.

        Their reader will say that they do not end.

        Returns:
            Whether the last is too long itself, and what to go on with.
        """
        begin = self._read - len(rest)
        start = max((match.start() for match in _OPENING.finditer(rest)), default=0)
        if _OPENING.search(rest, 0, start):
            yield from self._opened(rest[:start], b"", begin)
        if len(rest) - start <= _LONGEST_PAGE:
            return False, rest[start:]
        yield from self._opened(rest[start : start + _LONGEST_HEAD], b"", begin + start)
        return True, rest[-_LONGEST_TAG:]

    def _opened(self, source: bytes, closing: bytes, start: int) -> Iterator[Raw]:
        """What stands before a closing tag: a page, behind those that never closed.

        Without an opening tag it is no page, either; the reader will say so.
        """
        head, *found = _OPENING.split(source)
        pages = [b"<page" + text for text in found] or [source]
        pages[-1] += closing
        self.pages += len(pages)
        start += len(head) if found else 0
        for page in pages:
            yield Raw(start, start + len(page), page)
            start += len(page)

    def _pieces(self) -> Iterator[bytes]:
        decode = None
        for piece, done in pieces(self.path, self._threads):
            if decode is None:
                decode = _decoder(piece)
                if piece.startswith(codecs.BOM_UTF8):
                    piece = piece.removeprefix(codecs.BOM_UTF8)
                    self._read = len(codecs.BOM_UTF8)
            yield decode(piece)
            if self._progress:
                self._progress(done)

    def _damaged(self, error: Exception) -> None:
        self.damage = f"after {self.pages} whole pages: {type(error).__name__}: {error}"
        if not self._keep:
            raise InputError(
                "The dump is damaged or ends early", where=self.path,
                expected="a whole file", got=self.damage,
                fix="fetch it again, or keep the pages before the damage: clean.on_damage=keep",
            ) from error  # fmt: skip


def _decoder(head: bytes) -> Callable[[bytes], bytes]:
    """What turns the dump's bytes into UTF-8: nearly always they are, and nothing is done."""
    declared = _ENCODING.match(head)
    name = declared[1].decode().lower() if declared else "utf-8"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        name = "utf-16"
    if name in ("utf-8", "utf8", "us-ascii"):
        return lambda data: data
    try:
        # Python's codecs are not all of text: `zlib`. The declaration was read as ASCII.
        if name != "utf-16" and _ASCII.decode(name) != _ASCII.decode():
            return lambda data: data
        decoder = codecs.getincrementaldecoder(name)("replace")
        # `idna` knows no replacement, and says so only here.
        decoder.decode(b"")
    except (LookupError, UnicodeError):
        return lambda data: data
    return lambda data: decoder.decode(data).encode()
