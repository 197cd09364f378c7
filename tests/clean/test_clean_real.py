"""Whole dumps, held against patterns of markup and a parser that are not our own.

Real ones come as data with gensim; the Chinese one is made by hand. The Japanese one
is in no package: `MEGALINE_JAWIKI` names a file of Japanese Wikipedia, which may end early.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasks.clean.dump import Dump
from tasks.clean.mediawiki import read_page
from tasks.clean.task import CleanConfig, clean
from tasks.clean.wikitext import clean as clean_markup
from tasks.core import sources
from tasks.core.artifacts import CleanCorpus, RawCorpus
from tasks.core.store import Store
from tasks.ingest.task import IngestConfig, ingest

DATA = "package://gensim/test/test_data"
DUMPS = {
    "english": f"{DATA}/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
    "bulgarian": f"{DATA}/bgwiki-latest-pages-articles-shortened.xml.bz2",
    "tables": f"{DATA}/enwiki-table-markup.xml.bz2",
    "chinese": str(Path(__file__).parents[1] / "data" / "wiki" / "chinese_markup.xml"),
    "japanese": os.environ.get("MEGALINE_JAWIKI", ""),
}
# Pages of articles, redirects and other namespaces, as `grep` counts them in the dumps' XML.
PAGES = {"english": (106, 99, 1), "bulgarian": (1, 0, 2), "tables": (5, 0, 0), "chinese": (1, 0, 3)}
HAS_GENSIM = importlib.util.find_spec("gensim") is not None
needs_gensim = pytest.mark.skipif(not HAS_GENSIM, reason="the sample dumps come with gensim")
# Written from MediaWiki's help pages, not from ours: what a reader would take for markup.
MARKUP = re.compile(
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|-\{|\}-|'''|''(?=\w)|^\s*[*#;|!]|^=.*=$|__[A-Z]{4,}__"
    r"|</?(?:ref|br|div|span|small|su[bp]|nowiki|gallery|table|t[dr]|math|center|font|blockquote)\b"
    r"|<!--|-->|&(?:[a-zA-Z]{2,8}|#x?[0-9a-fA-F]{2,6});|[(（]\s*[,;、，；]|[(（]\s*[)）]"
    r"|\|\s*(?:thumb|left|right|\d+px|サムネイル|мини)\s*\||(?:style|align|colspan|rowspan)\s*=\s*[\"']"
    r"|\[https?:|^(?:Category|File|Image|Категория|Файл|ファイル|画像):"
)
FORMULA = re.compile(r"\$[^$\n]*\$")
WORD = re.compile(r"[^\W_]+")
# Links that readers do not see where they stand.
FURNITURE = re.compile(r"(?:file|image|category|media|[a-z]{2,3}(?:-[a-z]+)*|simple)\s*:", re.I)
BRACKETED_URL = re.compile(r"\[(?:https?:)?//[^\s\]]+\]")


@dataclass(frozen=True)
class Cleaned:
    texts: dict[str, str]
    report: dict[str, Any]

    @property
    def paragraphs(self) -> list[str]:
        return [line for text in self.texts.values() for line in text.split("\n")]


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cleaned]:
    """Each dump, cleaned once with the thresholds that drop documents as low as they go."""
    every = {"min_words": 0, "min_sentences": 0, "max_unlettered_words": 1}
    made = {}
    for name, url in DUMPS.items():
        if not url or (url.startswith(DATA) and not HAS_GENSIM):
            continue
        store = Store(tmp_path_factory.mktemp(name))
        raw = ingest.build(store, IngestConfig(source=url)).artifact
        assert isinstance(raw, RawCorpus)
        config = CleanConfig(workers=1, on_damage="keep", **every)
        corpus = clean.build(store, config, {"corpus": raw}).artifact
        assert isinstance(corpus, CleanCorpus)
        lines = [line for path in corpus.shards for line in path.read_text("utf-8").splitlines()]
        texts = {record["title"]: record["text"] for record in map(json.loads, lines)}
        assert len(texts) == len(lines)
        made[name] = Cleaned(texts, json.loads((corpus.data / "report.json").read_text("utf-8")))
    return made


@pytest.fixture(params=DUMPS)
def dump(request: pytest.FixtureRequest, cleaned: dict[str, Cleaned]) -> tuple[str, Cleaned]:
    name = request.param
    return name, _made(cleaned, name)


def _made(cleaned: dict[str, Cleaned], name: str) -> Cleaned:
    if name not in cleaned:
        asked = "set MEGALINE_JAWIKI to a dump of the Japanese Wikipedia"
        pytest.skip(asked if name == "japanese" else "the sample dumps come with gensim")
    return cleaned[name]


def _articles(name: str) -> Iterator[tuple[str, str]]:
    """Titles and wikitext of a dump's articles that are no redirects, straight from its XML."""
    found = Dump(sources.locate(DUMPS[name]), "keep")
    for raw in found.raw():
        page = read_page(raw.data, found.site)
        if page.namespace == 0 and b"<redirect" not in raw.data:
            yield page.title, page.text


def test_every_article_is_there_and_the_counts_add_up(dump: tuple[str, Cleaned]) -> None:
    name, found = dump
    whereabouts = found.report["whereabouts"]
    assert sum(whereabouts.values()) == found.report["pages"]
    assert set(found.texts) == {title for title, _ in _articles(name)}
    counted = {fate: count for fate, count in whereabouts.items() if count}
    if name in PAGES:
        fates = dict(zip(("articles", "redirects", "other_namespaces"), PAGES[name], strict=True))
        assert counted == {fate: count for fate, count in fates.items() if count}
    else:
        assert set(counted) == {"articles", "redirects", "other_namespaces"}
    assert found.report["characters"]["out"] == sum(map(len, found.texts.values()))


def test_markup_is_left_in_fewer_than_one_paragraph_of_a_thousand(
    dump: tuple[str, Cleaned],
) -> None:
    _, found = dump
    # A formula is LaTeX, on purpose.
    left = [line for line in found.paragraphs if MARKUP.search(FORMULA.sub("", line))]
    assert len(left) < len(found.paragraphs) / 1_000, left
    assert not any(re.search(r"&(?:amp|nbsp|lt|gt|ndash|quot);", line) for line in left)
    assert not any("(," in line for line in left)


@needs_gensim
def test_the_patterns_find_markup() -> None:
    """A control: most lines of the wikitext itself are caught."""
    lines = [line for _, text in _articles("tables") for line in text.split("\n") if line.strip()]
    assert sum(map(bool, map(MARKUP.search, lines))) > 0.9 * len(lines)


@needs_gensim
@pytest.mark.parametrize("name", ["english", "bulgarian", "tables"])
def test_words_are_those_of_another_parser_where_there_are_no_templates(name: str) -> None:
    """Sections without a template or table, which the two would show in other ways."""
    theirs: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    sections = 0
    for _, text in _articles(name):
        for section in re.split(r"\n(?==)", text):
            if "{{" in section or "{|" in section or "<gallery" in section:
                continue
            sections += 1
            words = Counter(WORD.findall(_stripped(section)))
            theirs += words
            # Behind the section a sentence, for a heading alone is dropped.
            kept += words & Counter(WORD.findall(clean_markup(f"{section}\n\nEnd.").text))
    assert sections > {"english": 500, "bulgarian": 0, "tables": 20}[name]
    assert kept.total() >= 0.99 * theirs.total(), (theirs - kept).most_common(30)


def _stripped(section: str) -> str:
    """What mwparserfromhell shows of a section but references, files, categories, bare URLs."""
    parser = pytest.importorskip("mwparserfromhell")
    code = parser.parse(BRACKETED_URL.sub("", section))
    references = code.filter_tags(matches=lambda tag: str(tag.tag).strip().lower() == "ref")
    links = [link for link in code.filter_wikilinks() if FURNITURE.match(str(link.title).strip())]
    for node in references + links:
        # What stands inside of one that went before went with it.
        if code.contains(node):
            code.remove(node)
    return str(code.strip_code(keep_template_params=False))


# Worked out from the articles' wikitext and what the templates' documentation says they show.
READS = {
    "Alaska": [
        "about 500 miles (800 km) of British Columbia",  # {{convert|500|mi|km|-1}}
        "the average low temperature in Barrow is 34 °F (1 °C).",  # {{convert|34|°F}}
        "Juneau averages over 50 in (130 cm) of precipitation",  # {{convert|50|in|cm|abbr=on}}
    ],
    "Andorra": ["at an altitude of 1,300 meters (4,300 ft)."],  # {{convert|1300|m|sp=us}}
    "Apollo 8": [
        # {{convert|63.6|nmi|km}} by {{convert|58.6|nmi|km}}
        "perturbated to 63.6 nautical miles (117.8 km) by 58.6 nautical miles (108.5 km).",
        # {{convert|203,752|nmi|smi km|abbr=off|sp=us}}
        "203,752 nautical miles (234,474 statute miles; 377,349 kilometers).",
    ],
    "Apollo 11": ["a 300-meter (980 ft) diameter crater"],  # {{convert|300|m|ft|adj=on|sp=us}}
    "Abraham Lincoln": ["10 miles (16 km) west of Decatur"],  # {{convert|10|mi|km}}
    "Actinopterygii": ["Paedocypris, at 8 mm (0.3 in), to"],  # {{convert|8|mm|in|1|abbr=on}}
    "Afghanistan": ["in January is below −15 °C (5 °F), and"],  # {{convert|-15|C}}
    "Alberta": [
        "St. Albert | Edmonton Capital Region | 22 °C (72 °F) | −6 °C (21 °F) | "
        "466 millimetres (18 in) | 4b\n"  # {{convert|22|C|0}} || … || {{convert|466|mm|0}}
    ],
    "Ampere": [
        "roughly 6.241×10¹⁸ times the elementary charge",  # {{val|6.241|e=18}}
        "would deposit 0.001118000 grams of silver per second",  # {{val|0.001118000|u=grams}}
        "battery charge is 30,000 C",  # {{val|30000|u=C}}
        "Hair dryer (1.8 kW): 15 A\n",  # an item of a list
    ],
    "Aruba": [
        "\nNoord / Tanki Leendert | 34.62 | 10,056 | 16,944 | 21,495\n",  # {{formatnum: 10056}}
        "\nTotal Aruba | 178.91 | 66,687 | 90,506 | 101,484\n",
        "\nParadera\nSan Nicolaas, divided in two districts\nSanta Cruz\nSavaneta\n",
    ],
    "Apollo": ["derived from this word: Πέλλα (Pella"],  # {{lang|grc|Πέλλα}}
    "Aikido": [
        'such as "health" (元気, genki), or',  # {{Nihongo|"health"|元気|genki}}
        "合 – ai – joining, unifying, combining, fitting\n気 – ki – spirit, energy, mood, morale\n",
    ],
    "Allah": ["use the terms Allāh al-ab (الله الأب) for God"],  # {{transl|…}}, {{lang|ar|…}}
    "Arthur Schopenhauer": ['Wille zum Leben ("Will to Live")'],  # {{lang|de|''Wille zum Leben''}}
    "International Atomic Time": [
        "from the French name Temps Atomique International)",  # {{lang|fr|''…''}}
        "As of 30 June 2015 when the last leap second",  # {{as of|2015|6|30}}
    ],
    "Alabama": ["As of 2015, the state of Alabama has"],  # {{as of|2015}}
    "Algorithm": ["\nTheory of computation\nComputability theory\nComputational complexity theory"],
}  # fmt: skip


@pytest.mark.parametrize("title", READS)
def test_numbers_units_foreign_words_and_lists_are_there(
    title: str, cleaned: dict[str, Cleaned]
) -> None:
    text = _made(cleaned, "english").texts[title]
    assert [piece for piece in READS[title] if piece not in text] == []


def test_tables_are_rows(cleaned: dict[str, Cleaned]) -> None:
    assert (
        "Company | Revenue (EUR millions)\nEricsson Eesti | 1,213.4\nTallink Grupp | 937.8\n"
        in _made(cleaned, "tables").texts["Economy of Estonia"]
    )


def test_a_bulgarian_article_reads_as_it_should(cleaned: dict[str, Cleaned]) -> None:
    text = _made(cleaned, "bulgarian").texts["Григориански календар"]
    assert (
        '\nГригорианският календар (понякога наричан и Грегориански календар, "нов стил") е '
        "съвременният международно признат светски календар, на който се основава и международният "
        "стандарт ISO 8601.\n"
    ) in text
    assert text.startswith("Папа Григорий XIII\n")
