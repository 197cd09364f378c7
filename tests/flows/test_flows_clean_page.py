"""`megaline clean-page` on hand-made dumps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.clean_page import rows
from flows.cli import _guarded, main

ENGLISH = Path(__file__).parents[1] / "data" / "wiki" / "english.xml"
CHINESE = ENGLISH.with_name("chinese.xml")


def test_one_article_and_what_each_rule_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert _guarded(["clean-page", str(ENGLISH), "Stone_Wall", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["title"], found["outcome"], found["verdict"]) == ("Stone Wall", "kept", None)
    assert found["text"].startswith("The Stone Wall (built 1815) is a wall of 5 metres (16 ft)")
    assert {"rule": "links", "before": "[[wall]]", "after": "wall"} in found["steps"]
    assert found["templates"] == {"infobox wall": 1, "ipac-en": 1, "reflist": 1}
    assert found["residue"] == {}


def test_markup_and_text_stand_side_by_side(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert _guarded(["clean-page", str(ENGLISH), "Stone Wall", "clean.min_words=500"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "outcome: dropped: too few words: 49, the limit is 500" in lines
    (heading,) = [line for line in lines if line.startswith("== History ==")]
    assert heading.endswith("| History")
    assert max(map(len, lines[6:20])) <= 100
    assert "  files                    File:Wall.jpg|thumb|The wall  ->  The wall" in lines


@pytest.mark.parametrize(("dump", "title"), [(ENGLISH, "Stone Wall"), (CHINESE, "长城")])
def test_nothing_is_lost_between_the_columns(dump: Path, title: str) -> None:
    from flows.clean_page import examined

    found = examined(str(dump), title, None, ())
    markup, text = zip(*rows(found), strict=True)
    assert [line for line in markup if line] == [
        line for line in found["wikitext"].split("\n") if line.strip()
    ]
    assert [line for line in text if line] == found["text"].split("\n")
    assert any(left and right for left, right in rows(found))


def test_the_page_is_escaped_and_asks_for_nothing(tmp_path: Path) -> None:
    dump = tmp_path / "dump.xml"
    hostile = "&lt;nowiki&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;/nowiki&gt; \x9b31m"
    dump.write_text(ENGLISH.read_text().replace("It was built", hostile))
    out = tmp_path / "page.html"
    assert _guarded(["clean-page", str(dump), "Stone Wall", "--html", str(out)]) == 0
    text = out.read_text()
    assert "&lt;script&gt;alert(1)" in text
    assert "<script" not in text
    assert "default-src 'none'" in text
    assert "The Stone Wall (built 1815)" in text


def test_the_terminal_is_not_steered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = tmp_path / "dump.xml"
    dump.write_text(ENGLISH.read_text().replace("It was built", "It \x9b31m was \u202e built"))
    assert _guarded(["clean-page", str(dump), "Stone Wall"]) == 0
    assert {"\x9b", "\u202e"}.isdisjoint(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([ENGLISH, "stone wal"], "did you mean 'Stone Wall'"),
        ([ENGLISH, "Nothing like it"], "name another dump"),
        ([__file__, "Stone Wall"], "no MediaWiki dump"),
        (["/no/such/dump.xml", "Stone Wall"], "does not exist"),
        ([ENGLISH, "Stone Wall", "clean.min_word=3"], "did you mean clean.min_words"),
        ([ENGLISH, "Stone Wall", "--html", "/no/such/folder/x.html"], "cannot be written"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    arguments: list[object], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["clean-page", *map(str, arguments)])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert says in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("title", "outcome"),
    [("Wall of Stone", "redirects"), ("Examplepedia:About", "other_namespaces"),
     ("Only a box", "empty"), ("Stub", "too_few_words"), ("Tide: rise & fall", "kept")],
)  # fmt: skip
def test_what_a_run_would_do(title: str, outcome: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _guarded(["clean-page", str(ENGLISH), title, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == outcome


def test_a_recipe_says_how(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "ingest: {source: none}\nmodel: {source: none}\nclean: {captions: drop, templates: table}\n"
    )
    command = ["clean-page", str(ENGLISH), "Stone Wall", "--json", "--recipe", str(recipe)]
    assert _guarded(command) == 0
    assert "The wall" not in json.loads(capsys.readouterr().out)["text"].split("\n")
    assert _guarded([*command, "clean.captions=text"]) == 0
    assert json.loads(capsys.readouterr().out)["text"].endswith("\nThe wall")
