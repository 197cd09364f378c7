"""A hand-made wiki through the stage: where every page and character went, and why."""

from __future__ import annotations

import bz2
import codecs
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import pytest

from tasks.clean import shards
from tasks.clean.task import CleanConfig, clean
from tasks.core.artifacts import CleanCorpus, RawCorpus
from tasks.core.errors import ConfigError, InputError
from tasks.core.store import Store
from tasks.ingest.task import IngestConfig, ingest

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="en">
<siteinfo><sitename>Examplepedia</sitename><base>https://ex.example.org/wiki/Main_Page</base>
<namespaces><namespace key="0" /><namespace key="6">File</namespace>
<namespace key="10">Template</namespace></namespaces></siteinfo>
"""
PROSE = (
    "The {0} was built by the people of the town, and it has stood there for a long time. "
    "Most of the visitors who come to see the {0} walk along the river in the evening.\n\n"
    "In winter the road to the {0} is closed, because the snow on the hills is deep."
)
RIVER = (
    "Rivers carry sand to the sea. Where the water is slow, the sand sinks, and over many years "
    "it makes new land, on which grass and then trees can grow, until a flood takes it away."
)
Pages = Sequence[tuple[str, str]]


def _page(number: int, title: str, text: str) -> str:
    namespace = 10 if title.startswith("Template:") else 0
    redirect = '<redirect title="x" />' if text.startswith("#REDIRECT") else ""
    return (
        f"<page><title>{title}</title><ns>{namespace}</ns><id>{number}</id>{redirect}<revision>"
        f"<id>{number + 1000}</id><timestamp>2024-05-0{number % 9 + 1}T00:00:00Z</timestamp>"
        f"<model>wikitext</model><text>{escape(text, quote=False)}</text></revision></page>\n"
    )


def _dump(path: Path, pages: Pages, tail: str = "") -> Path:
    body = "".join(_page(number, *page) for number, page in enumerate(pages, 1))
    path.write_text(f"{HEAD}{body}{tail}</mediawiki>\n", encoding="utf-8")
    return path


def _clean(tmp_path: Path, source: Path, **config: Any) -> CleanCorpus:
    raw = ingest.build(Store(tmp_path), IngestConfig(source=str(source))).artifact
    assert isinstance(raw, RawCorpus)
    config.setdefault("workers", 1)
    made = clean.build(Store(tmp_path), CleanConfig(**config), {"corpus": raw}, force=True)
    assert isinstance(made.artifact, CleanCorpus)
    return made.artifact


def _texts(corpus: CleanCorpus) -> dict[str, str]:
    lines = [line for shard in corpus.shards for line in shard.read_text().splitlines()]
    return {record["title"]: record["text"] for record in map(json.loads, lines)}


def _report(corpus: CleanCorpus) -> dict[str, Any]:
    return json.loads((corpus.data / "report.json").read_text(encoding="utf-8"))


def test_templates_of_the_dump_are_expanded(tmp_path: Path) -> None:
    pages = [
        (
            "Wall",
            PROSE.format("wall")
            + "\n\n{{height|5}} {{old}} It is {{age now|2000}}. {{unheard of}}",
        ),
        ("Template:Height", "It is {{#expr:{{{1}}}*2}} feet high."),
        ("Template:Tall", "It is tall."),
        ("Template:Old", "#REDIRECT [[Template:Tall]]"),
        ("Template:Age now", "{{#expr: {{CURRENTYEAR}} - {{{1}}} }}"),
    ]
    source = _dump(tmp_path / "dump.xml", pages)
    corpus = _clean(tmp_path, source)
    assert _texts(corpus)["Wall"].endswith("It is 10 feet high. It is tall. It is 24.")
    assert corpus.metrics["templates"] == {"unheard of": 1}
    report = _report(corpus)
    assert report["templates"]["most"][0]["sample"] == {"title": "Wall", "text": "{{unheard of}}"}
    assert (report["whereabouts"]["articles"], report["whereabouts"]["other_namespaces"]) == (1, 4)
    dropped = _clean(tmp_path, source, templates="table")
    assert _texts(dropped)["Wall"].endswith("It is.")
    assert dropped.metrics["templates_dropped"] == 4


def test_the_name_of_a_dump_tells_its_date(tmp_path: Path) -> None:
    text = PROSE.format("wall") + "\n\nIt is {{CURRENTYEAR}} now."
    source = _dump(tmp_path / "exwiki-20190203-pages-articles.xml", [("Wall", text)])
    for templates in ("dump", "table"):
        assert "It is 2019 now." in _texts(_clean(tmp_path, source, templates=templates))["Wall"]


def test_a_table_of_templates_of_ones_own(tmp_path: Path) -> None:
    table = tmp_path / "mine.txt"
    table.write_text("height => {1} feet\n")
    source = _dump(tmp_path / "dump.xml", [("Wall", PROSE.format("wall") + " At {{height|5}}.")])
    first = _clean(tmp_path, source, template_table=str(table))
    assert _texts(first)["Wall"].endswith("At 5 feet.")
    table.write_text("height => {1} metres\n")
    second = _clean(tmp_path, source, template_table=str(table))
    assert _texts(second)["Wall"].endswith("At 5 metres.")
    assert first.fingerprint != second.fingerprint
    table.write_text("height: feet\n")
    with pytest.raises(ConfigError, match=r"no rule.*mine\.txt, line 1"):
        _clean(tmp_path, source, template_table=str(table))


def test_duplicates_go_where_asked(tmp_path: Path) -> None:
    pages = [
        ("Wall", PROSE.format("wall")),
        ("Copy", PROSE.format("wall").upper()),
        ("River", RIVER + "\n\n" + PROSE.format("river").partition("\n\n")[0]),
        ("Delta", PROSE.format("delta") + "\n\n" + RIVER),
        ("Sand", RIVER + "\n\n" + RIVER),
    ]
    source = _dump(tmp_path / "dump.xml", pages)
    kept = _clean(tmp_path, source)
    assert list(_texts(kept)) == ["Wall", "Copy", "River", "Delta"]
    assert {n: c for n, c in _report(kept)["whereabouts"].items() if c} == {
        "articles": 4,
        "duplicate_lines": 1,
    }
    exact = _clean(tmp_path, source, duplicates="exact", max_duplicate_lines=1)
    assert "Copy" not in _texts(exact)
    pruned = _clean(tmp_path, source, drop_repeated_paragraphs=True)
    assert _texts(pruned)["Delta"] == PROSE.format("delta").replace("\n\n", "\n")
    report = _report(pruned)
    assert report["rules"]["repeated_paragraph"]["times"] == 3
    assert report["samples"]["repeated_paragraph"][-1]["title"] == "Delta"
    # A document of which nothing is left is a duplicate, too.
    assert report["whereabouts"]["duplicate"] == 1
    assert sum(report["whereabouts"].values()) == report["pages"] == 5
    assert report["characters"]["out"] == sum(map(len, _texts(pruned).values()))


def test_what_repetition_leaves_is_held_against_the_threshold(tmp_path: Path) -> None:
    pages = [
        ("River", RIVER),
        ("Rest", f"A short rest.\n\n== Sand ==\n{RIVER}"),
        ("Wall", f"{PROSE.format('wall')}\n\n== Sand ==\n{RIVER}"),
    ]
    source = _dump(tmp_path / "dump.xml", pages)
    corpus = _clean(tmp_path, source, drop_repeated_paragraphs=True)
    assert _texts(corpus)["Wall"] == PROSE.format("wall").replace("\n\n", "\n")
    report = _report(corpus)
    assert "Rest" not in _texts(corpus)
    assert report["whereabouts"]["too_few_words_left"] == 1
    assert report["characters"]["dropped"] == {"too_few_words_left": len("A short rest.")}
    assert sum(report["whereabouts"].values()) == report["pages"] == 3
    assert report["samples"]["too_few_words_left"][0]["value"] == 3
    assert report["rules"]["empty_section"]["times"] == 2


def test_what_a_dropped_document_was_the_first_to_hold_stays_where_it_comes_next(
    tmp_path: Path,
) -> None:
    only = "Boats of all kinds were built and mended on the sand below the old harbour wall."
    rest = f"{RIVER}\n\n{only}"
    pages = [
        ("River", RIVER),
        ("Rest", rest),
        ("Again", f"{rest} "),
        ("Wall", f"{PROSE.format('wall')}\n\n{only}\n\n{only}"),
        ("Tower", f"{PROSE.format('tower')}\n\n{only}"),
    ]
    source = _dump(tmp_path / "dump.xml", pages)
    corpus = _clean(tmp_path, source, drop_repeated_paragraphs=True)
    texts = _texts(corpus)
    assert list(texts) == ["River", "Wall", "Tower"]
    assert {title: text.count(only) for title, text in texts.items()} == {
        "River": 0, "Wall": 1, "Tower": 0,
    }  # fmt: skip
    report = _report(corpus)
    assert report["whereabouts"]["too_few_words_left"] == 2
    # Control: of a document that stays it is gone elsewhere.
    kept = _clean(tmp_path, source, drop_repeated_paragraphs=True, min_words=5)
    assert "Wall" in _texts(kept)
    assert only not in _texts(kept)["Wall"]
    assert only in _texts(kept)["Rest"]


def test_evaluation_sets_are_found_listed_and_dropped(tmp_path: Path) -> None:
    quiz = tmp_path / "quiz.jsonl"
    rows = [{"question": "What is it?"}, {"question": "Why?", "choices": ["No.", RIVER.lower()]}]
    quiz.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = _dump(tmp_path / "dump.xml", [("Wall", PROSE.format("wall")), ("River", RIVER)])
    corpus = _clean(tmp_path, source, evaluation_sets=[str(quiz)])
    assert list(_texts(corpus)) == ["Wall"]
    report = _report(corpus)
    assert report["whereabouts"]["contaminated"] == 1
    assert report["characters"]["dropped"] == {"contaminated": len(RIVER)}
    (hit,) = report["contamination"]["documents"]
    assert (hit["title"], hit["name"], hit["item"]) == ("River", "quiz", 1)
    assert hit["sample"].startswith("rivers carry sand")
    listed = _clean(tmp_path, source, evaluation_sets=[str(quiz)], contaminated="keep")
    assert list(_texts(listed)) == ["Wall", "River"]
    assert _report(listed)["contamination"] == report["contamination"]
    # A mark of the byte order does not turn a row of JSON into a line of text.
    quiz.write_bytes(codecs.BOM_UTF8 + json.dumps(["\n".join(RIVER.split())]).encode())
    assert list(_texts(_clean(tmp_path, source, evaluation_sets=[str(quiz)]))) == ["Wall"]
    # What is shorter than a run cannot be found.
    assert report["contamination"]["too_short"] == {"quiz": 1}
    quiz.write_text("\n")
    with pytest.raises(ConfigError, match=r"evaluation set.*quiz\.jsonl.*no text"):
        _clean(tmp_path, source, evaluation_sets=[str(quiz)])
    with pytest.raises(InputError, match="no/such"):
        _clean(tmp_path, source, evaluation_sets=["/no/such"])


def test_damage_costs_only_the_page_it_is_in(tmp_path: Path) -> None:
    broken = _page(7, "Broken", RIVER).replace("</text>", "</txt>")
    unclosed = _page(8, "Unclosed", RIVER).replace("</page>", "")
    lost = _page(9, "Opening lost", RIVER).replace("<page>", "")
    deleted = _page(6, "Deleted", "").replace("<text></text>", '<text bytes="9" deleted="d" />')
    good = _page(5, "River", RIVER)
    # Tags that share a line, and lines in the middle of tags.
    tail = (deleted + broken + unclosed + good + lost).replace("\n", "").replace("<ns>", "<ns\n>")
    source = _dump(tmp_path / "dump.xml", [("Wall", PROSE.format("wall"))], tail)
    corpus = _clean(tmp_path, source, templates="table")
    assert list(_texts(corpus)) == ["Wall", "River"]
    report = _report(corpus)
    assert [page["title"] for page in report["set_aside"]] == ["Broken", "Unclosed", "Opening lost"]
    assert report["pages"] == 6
    assert report["whereabouts"]["without_text"] == 1


def test_a_page_that_takes_too_long_is_named(tmp_path: Path) -> None:
    source = _dump(tmp_path / "dump.xml", [("Deep", "{{a|" * 9000 + RIVER)])
    with pytest.raises(Exception, match="No article was left") as caught:
        _clean(tmp_path, source, page_seconds=1e-9)
    assert "'timed_out': 1" in str(caught.value)


def test_every_way_gives_the_same_bytes_for_any_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_SMALLEST", 2_000)
    pages = [
        (f"Wall {n}", f"{PROSE.format(f'wall {n % 40}')}\n\n{RIVER}\n\n{{{{hill|{n}}}}} {{{{x}}}}")
        for n in range(60)
    ] + [("Template:Hill", "Hill {{{1}}} has {{#expr: {{{1}}} * 3}} trees and no house at all.")]
    xml = _dump(tmp_path / "dump.xml", pages).read_bytes()
    source = tmp_path / "dump.xml.bz2"
    source.write_bytes(
        b"".join(bz2.compress(xml[at : at + 9000]) for at in range(0, len(xml), 9000))
    )
    options = {"duplicates": "near", "drop_repeated_paragraphs": True, "near_threshold": 0.95}
    files = [
        _clean(tmp_path / str(workers), source, workers=workers, **options).record.files
        for workers in (1, 2, 4)
    ]
    assert files[0] == files[1] == files[2]
    assert len(_texts(_clean(tmp_path / "1", source, **options))) > 20


def test_dumps_of_histories_are_refused(tmp_path: Path) -> None:
    pages = [("Wall", PROSE.format("wall"))]
    named = _dump(tmp_path / "exwiki-20260101-pages-meta-history1.xml", pages)
    with pytest.raises(InputError, match="history of its pages"):
        _clean(tmp_path, named)
    text = (tmp_path / named.name).read_text()
    revision = text[text.index("<revision>") : text.index("</page>")]
    unnamed = tmp_path / "dump.xml"
    unnamed.write_text(text.replace(revision, revision * 2))
    with pytest.raises(InputError, match=r"dump\.xml.*several revisions of 'Wall'"):
        _clean(tmp_path, unnamed)
