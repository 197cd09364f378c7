"""What cleaning says of its own losses, and of the markup that it leaves."""

from __future__ import annotations

import random

import pytest

from tasks.clean.residue import paragraphs_with_residue, residue
from tasks.clean.wiki import Wiki
from tasks.clean.wikitext import clean

PAGE = """\
{{Infobox|a=b}}'''Ada'''<ref>one {{cite|x}}</ref> wrote<!-- when? --> {{cite web|u}}.
[[File:A.jpg|20px|no frame]] [[Category:Poets]] [[fr:Ada]]
<timeline>x y</timeline>
{|
! a !! b
|}"""


def test_characters_lost_are_told_by_construct() -> None:
    lost = clean(PAGE).lost
    assert lost == {
        "references": len("<ref>one {{cite|x}}</ref>"),
        "comments": len(" when? "),
        "templates": len("{{Infobox|a=b}}{{cite web|u}}"),
        "files": len("File:A.jpg|20px|no frame"),
        "categories": len("Category:Poets"),
        "language links": len("fr:Ada"),
        "<timeline>": len("x y"),
    }
    assert clean(PAGE).text == "Ada wrote.\na | b"


def test_characters_kept_are_told_by_construct() -> None:
    page = "{{nowrap|ab}} <math>x</math> -{zh-hans:c;zh-hant:d}- [[File:A.jpg|thumb|see e]]"
    kept = {"templates": 2, "<math>": 3, "variants": 1, "files": 5}
    assert clean(page).kept == kept
    assert clean(PAGE).kept == {"tables": len("a | b")}


def test_tables_and_captions_can_be_dropped() -> None:
    page = "a [[File:B.jpg|thumb|left|see [[c]]]] d\n{|\n| e\n|}\n<gallery>\nF.jpg|g\n</gallery>"
    assert clean(page).text == "a d\nsee c\ne\ng"
    dropped = clean(page, Wiki(tables="drop", captions="drop"))
    assert dropped.text == "a d"
    assert set(dropped.lost) == {"files", "tables", "<gallery>"}


def test_a_trace_tells_what_each_rule_did() -> None:
    assert clean(PAGE).trace is None
    page = PAGE + "a [[b|c]] {{convert|5|m}} " + "[[d|e]]" * 9_000
    cleaned = clean(page, trace=True)
    assert cleaned.text == clean(page).text
    steps = [(step.rule, step.before, step.after) for step in cleaned.trace or []]
    assert ("links", "[[b|c]]", "c") in steps
    assert ("references", "<ref>one {{cite|x}}</ref>", "") in steps
    assert ("comments", " when? ", "") in steps
    assert len(steps) == 5_000


LEFT = {
    "templates": "a {{b}} c", "tables": "a\n|- b", "links": "[[a]]", "quotes": "''a''",
    "external_links": "[http://a.org b]", "references": "a<ref name=b />", "tags": "a<br/>b",
    "entities": "a&nbsp;b &#160;", "headings": "a\n== b ==", "list_marks": "* a",
    "gaps": "a (, b) （）", "categories": "Category:A", "images": "a|thumb|b",
    "magic_words": "__TOC__", "attributes": 'colspan="2"', "variants": "-{zh:a}-",
    "comments": "a <!-- b",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), LEFT.items())
def test_markup_that_is_left_is_found(kind: str, text: str) -> None:
    assert set(residue(text)) == {kind}
    assert paragraphs_with_residue(f"{text}\nfine") == [text.split("\n")[-1]]


def test_prose_has_no_residue() -> None:
    prose = "AT&T; a < b > c; f(x) = {y}; 5 * 3; #1 | 2; it's (a, b), [sic]; https://a.org"
    assert not residue(prose)


PIECES = """{{ }} {{{ }}} [[ ]] [http://a ] {| |} || !! | = ''' '' <ref> </ref> <!-- --> <nowiki>
</nowiki> <math> </math> <gallery> </gallery> <table> <td> </table> <br> -{ }- &nbsp; &#1; __TOC__
File:a.jpg|thumb| Category: #if: #switch: #expr: convert|5|m lang|fr| T| {{T| {{Loop}} {{{1|
{{#time:Y| <ruby> <rt> <sup>2</sup> \x01 \x031\x03 {{!}} {{coord|1|2|N|
中文 （ ） ( ) , ; word""".split()
LIBRARY = {
    "T": "{{#if:{{{1|}}}|[[{{{1}}}]] {{T2|{{{1}}}}}}}",
    "T2": "{| {{{1}}}\n",
    "Loop": "{{Loop}}",
}


def test_fuzzed_markup_never_raises_and_leaves_no_stand_in() -> None:
    chance = random.Random(7)
    wikis = [Wiki(), Wiki(library=LIBRARY, language="zh"), Wiki(tables="drop", captions="drop")]
    for _ in range(600):
        pieces = chance.choices([*PIECES, "\n", "\n| ", "\n* ", "\n== h ==\n", " "], k=60)
        text = clean("".join(pieces), chance.choice(wikis), "T").text
        assert not any(character in text for character in "\x01\x02\x03\x04\x05\x06")
