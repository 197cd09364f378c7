"""What `clean.py --quality` counts in the texts of ours and of the peers, on the same pages."""

from __future__ import annotations

import json
import re
from collections import Counter
from html import escape, unescape
from typing import TYPE_CHECKING, Any

import clean_data

from tasks.clean.dump import Dump
from tasks.clean.mediawiki import Page, read_page
from tasks.core.sources import locate

if TYPE_CHECKING:
    from clean import Bench

SAMPLES = {
    "English": clean_data.SAMPLE,
    "Bulgarian": f"{clean_data.SAMPLES}/bgwiki-latest-pages-articles-shortened.xml.bz2",
    "tables": f"{clean_data.SAMPLES}/enwiki-table-markup.xml.bz2",
}
# Written for this file, and not those of the audit in tasks/clean/residue.py.
RESIDUE = re.compile(
    r"""
      \{\{ | \}\} | \[\[ | \]\] | \{\| | ^\s*\|[-}+] | '' | <!-- | -->
    | \[(?:https?:)?// | &(?:\w{2,8}|\#\d+); | __[A-Z]+__
    | </?(?:ref|div|span|br|su[bp]|small|big|center|table|t[drh]|font|blockquote|math|nowiki
           |gallery|code|pre|references|[bisup]|li|[ou]l|includeonly|noinclude)\b[^>]*>
    | ^=+[^=].*=+\s*$ | \b(?:File|Image|Category):\S | \|\s*(?:thumb|left|right|\d+px)\b
    | \(\s*[,;] | \(\s*\) | ^[*\#:;] | \b(?:colspan|rowspan|style|bgcolor|align|class)\s*=\s*"
    """,
    re.X | re.M,
)
_WORD = re.compile(r"[^\W_]+")
_HIDDEN = ("file", "image", "category", "media", "файл", "картинка", "категория")
_LANGUAGES = (
    "bg",
    "de",
    "en",
    "es",
    "fr",
    "it",
    "ja",
    "nl",
    "pl",
    "pt",
    "ru",
    "simple",
    "sv",
    "zh",
)
_WHOLE_DUMP: dict[str, Any] = {"templates": "table", "quality_filters": False}


def measure(bench: Bench) -> dict[str, Any]:
    """Residue and words of each sample."""
    found = {name: _sample(bench, name, source) for name, source in SAMPLES.items()}
    short = clean_data.shortened(clean_data.read(locate(f"package://{clean_data.SAMPLE}")))
    return {**found, "pages without templates": _plain(bench, short)}


def _sample(bench: Bench, name: str, source: str) -> dict[str, Any]:
    path = bench.dump(f"lined-{name}", _lined(source))
    ours = bench.documents("ours", path, _WHOLE_DUMP)
    found: dict[str, Any] = {"ours": _residue(ours)}
    for mode in ([], ["--no-templates"]):
        theirs = bench.documents("wikiextractor", path, {"more": mode})
        kept = sum(_shared(text, ours.get(key, "")) for key, text in theirs.items())
        words = sum(_words(text).total() for text in theirs.values())
        found[" ".join(["WikiExtractor", *mode])] = {
            **_residue(theirs),
            "of its words ours has": round(kept / max(1, words), 5),
        }
    return found


def _plain(bench: Bench, short: clean_data.Dump) -> dict[str, Any]:
    """The share of mwparserfromhell's words that ours has."""
    pages = [page for page in short.pages if "{{" not in page and "{|" not in page]
    path = bench.dump("plain", short._replace(pages=pages))
    ours = bench.documents("ours", path, _WHOLE_DUMP)
    sources = {page.id: page.text for page in _pages(Dump(path))}
    file = bench.scratch / "plain.json"
    file.write_text(json.dumps(list(sources.values())), encoding="utf-8")
    theirs = bench.told("mwparserfromhell", file, {"hidden": (*_HIDDEN, *_LANGUAGES)})["texts"]
    texts = dict(zip(sources, map(unescape, theirs), strict=True))
    kept = sum(_shared(text, ours.get(key, "")) for key, text in texts.items())
    words = sum(_words(text).total() for text in texts.values())
    return {"pages": len(texts), "words": words, "recall": round(kept / words, 5)}


def _residue(texts: dict[str, str]) -> dict[str, Any]:
    lines = [line for text in texts.values() for line in text.split("\n") if line.strip()]
    return {
        "pages": len(texts),
        "characters": sum(map(len, texts.values())),
        "paragraphs": len(lines),
        "with markup": sum(RESIDUE.search(line) is not None for line in lines),
        "marks": sum(1 for line in lines for _ in RESIDUE.finditer(line)),
    }


def _lined(source: str) -> clean_data.Dump:
    """A dump whose tags stand on lines of their own, as WikiExtractor must have them."""
    path = locate(f"package://{source}")
    dump = Dump(path, "keep")
    pages = _pages(dump)
    xml = [
        clean_data.page_xml(int(page.id), escape(page.title, False), escape(page.text, False))
        for page in pages
        if page.no_article is None
    ]
    site = dump.site
    names = "".join(
        f'      <namespace key="{key}" case="first-letter">{name}</namespace>\n'
        for key, name in site.namespaces or ((0, ""), (10, "Template"))
    )
    head = (
        f'<mediawiki xml:lang="{site.language}">\n  <siteinfo>\n'
        f"    <base>{site.base or 'https://en.wikipedia.org/wiki/'}Main_Page</base>\n"
        f"    <namespaces>\n{names}    </namespaces>\n  </siteinfo>\n"
    )
    return clean_data.Dump(head, xml, "</mediawiki>\n")


def _pages(dump: Dump) -> list[Page]:
    return [read_page(raw.data, dump.site) for raw in dump.raw()]


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text))


def _shared(one: str, other: str) -> int:
    return (_words(one) & _words(other)).total()
