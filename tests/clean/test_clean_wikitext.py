"""Wiki markup against text worked out by hand from what MediaWiki shows."""

from __future__ import annotations

import time

import pytest

from tasks.clean.wiki import Namespaces, Wiki
from tasks.clean.wikitext import clean

CASES = {
    "plain": ("Two words.", "Two words."),
    "bold, italic": ("'''Ada''' ''saw'' '''''both'''''.", "Ada saw both."),
    "apostrophe in bold": ("''''tis''' so", "'tis so"),
    "elision before italics": ("à l'''Opéra'' de '''Paris'''", "à l'Opéra de Paris"),
    "apostrophe after italics": ("''[[Nature]]''{{'}} ''Ada''{{'s}}", "Nature' Ada's"),
    "link": ("a [[cat]] sat", "a cat sat"),
    "piped link": ("a [[Felis catus|cat]] sat", "a cat sat"),
    "link with trail": ("two [[cat]]s", "two cats"),
    "link to a section": ("see [[#History]]", "see History"),
    "italic link text": ("[[Nature (journal)|''Nature'']] says", "Nature says"),
    "category": ("Text.\n[[Category:Cats]]", "Text."),
    "shown category": ("see [[:Category:Cats]]", "see Cats"),
    "file with nested caption": (
        "[[File:A.jpg|thumb|A [[cat]] on a {{convert|1|m}} [[wall|high wall]]]]Text.",
        "Text.\nA cat on a 1 metre (3 ft 3 in) high wall",
    ),
    "file under an unknown name": ("[[Soubor:A.svg|popis]]Text.", "Text."),
    "language link": ("Text. [[fr:Chat]]", "Text."),
    "interwiki": ("see [[wikt:cat|cat]]", "see cat"),
    "title with a colon": ("in [[2001: A Space Odyssey]]", "in 2001: A Space Odyssey"),
    "external link": ("by [http://a.org/x?y=1 the ''Times''] here", "by the Times here"),
    "external link, no text": ("by it [https://a.org] here", "by it here"),
    "external link, not closed": ("by [http://a.org it\nand on", "by it\nand on"),
    "bracketed word": ("he [sic] said", "he [sic] said"),
    "template": ("{{Infobox|a=b|c={{d|e}}}}Text{{citation needed|date=May}}.", "Text."),
    "template over lines": ("{{Infobox\n| a = [[b]]\n| c = d\n}}\nText.", "Text."),
    "parser function": ("a{{#if:x|y|z}} b", "ay b"),
    "parameter": ("a {{{1|default}}} b", "a default b"),
    "magic words": ("__NOTOC__\nText __FORCETOC__.", "Text ."),
    "convert": ("a {{convert|5|m|ft|abbr=on}} wall", "a 5 m (16 ft) wall"),
    "convert a range": (
        "{{convert|10|to|20|km2|sqmi}}", "10 to 20 square kilometres (3.9 to 7.7 sq mi)"
    ),
    "convert feet and inches": ("{{convert|5|ft|9|in|m}} tall", "5 feet 9 inches (1.75 m) tall"),
    "val": ("{{val|1.5|0.2|e=-5|u=kg}}", "(1.5±0.2)×10⁻⁵ kg"),
    "lang": ("''{{lang|fr|été}}'' is {{lang-fr|été}}", "été is été"),
    "langx": ("({{langx|de|Haus}})", "(Haus)"),
    "transl": ("{{transl|ru|GOST|dacha}}", "dacha"),
    "nowrap": ("{{nowrap|a [[b|c]]}} d", "a c d"),
    "formatnum": ("{{formatnum:1234567.5}}", "1,234,567.5"),
    "abbr": ("{{abbr|NB|nota bene}} this", "NB this"),
    "circa": ("{{circa|1900}}", "c. 1900"),
    "as of": ("{{As of|2015|3}} and {{as of|2016|lc=y}}", "As of March 2015 and as of 2016"),
    "nihongo": ("{{nihongo|Tokyo|東京|Tōkyō}}", "Tokyo (東京, Tōkyō)"),
    "quote": ("He said:\n{{quote|Be [[kind]].|Ada}}", "He said:\nBe kind.\n— Ada"),
    "fraction": ("{{frac|3|1|2}} and {{frac|1|2}}", "3 1/2 and 1/2"),
    "chem": ("{{chem|H|2|O}}", "H2O"),
    "pipe inside an argument": ("{{nowrap|a{{!}}b}}", "a|b"),
    "numbered argument": ("{{lang|fr|2=a=b}}{{nowrap|1=x=y}}", "a=bx=y"),
    "IPA and its parenthesis": ("Ada ({{IPAc-en|ˈ|eɪ}}) was", "Ada was"),
    "IPA first in a parenthesis": ("Ada ({{IPA-en|x}}; born 1815) was", "Ada (born 1815) was"),
    "IPA last in a parenthesis": ("Ada (born 1815, {{IPA-en|x}}) was", "Ada (born 1815) was"),
    "full-width parenthesis": ("東京（{{IPA|x}}、とうきょう）は", "東京（とうきょう）は"),
    "call with nothing in it": ("the function main() returns", "the function main() returns"),
    "space before a reference": ("a word <ref>x</ref>, and", "a word, and"),
    "reference": ("one.<ref>{{cite|a}} [[b]]</ref> Two.", "one. Two."),
    "named references": ('one<ref name="a" /> two<ref name=b>c</ref> x<ref name=a/>', "one two x"),
    "nested references": ("one<ref>a<ref>b</ref>c</ref> two", "one two"),
    "reference not closed": (
        "one<ref>a two\n\nThree<ref>b</ref> four\n== H ==\nfive",
        "onea two\nThree four\nH\nfive",
    ),
    "reference end alone": ("one</ref> two", "one two"),
    "comment": ("a<!-- [[b]] {{c -->d", "ad"),
    "comment not closed": ("a <!-- b c", "a b c"),
    "nowiki": ("a <nowiki>''b'' [[c]]</nowiki> d", "a ''b'' [[c]] d"),
    "math": (r"where <math>x_{{1}} = \frac12</math> is", r"where $x_{ {1} } = \frac12$ is"),
    "chemistry": ("<chem>H2O</chem>", "H2O"),
    "superscript": ("10<sup>-6</sup> m<sup>2</sup> H<sub>2</sub>O", "10⁻⁶ m² H2O"),
    "line break": ("a<br />b", "a\nb"),
    "tags": ('<div class="x"><span>a</span> <small>b</small></div>', "a b"),
    "no tag": ("if x < y and y > z", "if x < y and y > z"),
    "unknown tag": ("the <foo> tag", "the <foo> tag"),
    "gallery": ("a\n<gallery>\nA.jpg|cat\n</gallery>\nb", "a\ncat\nb"),
    "code": ("<syntaxhighlight lang=c>\n{{0}, [[1]]}\n</syntaxhighlight>", "{{0}, [[1]]}"),
    "table": ('a\n{| class="w"\n|-\n! x\n| y || z\n|}\nb', "a\nx | y | z\nb"),
    "nested table": ("a\n{|\n| x\n{|\n| y\n|}\n| z\n|}\nb", "a\nx y | z\nb"),
    "list in a cell": ("{|\n|\n* x\n* y\n| z<br>w\n|}", "x, y | z w"),
    "cells with attributes": (
        '{|\n| style="a" | x || colspan=2| y || rowspan="2"\n! scope=row | z\n|}', "x | y | z"
    ),
    "caption of a table": ("{|\n|+ align=top | t\n|-\n| x || y\n|}", "t\nx | y"),
    "table for layout": ("{|\n| one<br>two\n* three\n|}", "one\ntwo\nthree"),
    "caption in a paragraph": ("a [[File:B.jpg|thumb|see c]] d\n\ne", "a d\nsee c\ne"),
    "caption in other languages": (
        "[[Datei:B.jpg|mini|hochkant=1.2|links|Ein Haus]][[文件:B.jpg|缩略图|右|200像素|房子]]a",
        "a\nEin Haus\n房子",
    ),
    "image without a frame": ("a [[File:B.jpg|20px|see c]] d", "a d"),
    "ruby": ("<ruby>漢字<rp>(</rp><rt>かんじ</rt><rp>)</rp></ruby>", "漢字（かんじ）"),
    "definition": ("; term : what it is", "term: what it is"),
    "tables in cells": (
        "{|\n| n\n|\n{|\n| 1 || #\n|-\n| 2 || b\n|}\n|}", "n\n1 | #\n2 | b"
    ),
    "table in a template": ("{{box|\n{|\n| x\n|}}}\nb", "b"),
    "HTML table": ("a<table><tr><td>x</td></tr></table>b", "a\nx\nb"),
    "table not closed": ("a\n{|\n| x\n| y\nb", "a\nb"),
    "template not closed": ("a {{b|c\n\nThe rest [[stays|remains]].", "a b|c\nThe rest remains."),
    "link not closed": ("a [[b|c\n\nThe rest [[d]].", "a b|c\nThe rest d."),
    "ends alone": ("a ]] b }} c |} d", "a b c |} d"),
    "crossed brackets": ("a {{box|[[c}} d", "a d"),
    "heading": ("== Life ==\nShe lived.", "Life\nShe lived."),
    "heading of an empty section": ("a\n== X ==\n{{y}}\n== Z ==\nb", "a\nZ\nb"),
    "heading over a subsection": ("== X ==\n=== Y ===\nb", "X\nY\nb"),
    "subsection without text": ("== X ==\nb\n=== Y ===\n== Z ==\nc", "X\nb\nZ\nc"),
    "lists": ("* a\n** b\n# c\n: d\n; e", "a\nb\nc\nd\ne"),
    "rule": ("a\n----\nb", "a\nb"),
    "entities": ("A&amp;B &ndash; c&nbsp;d &#8364; &lt;x&gt;", "A&B – c d € <x>"),
    "entities escaped twice": ("a &amp;nbsp; b &amp;amp; c", "a b & c"),
    "no entity": ("AT&T; R&D &copy 5 &unknown;", "AT&T; R&D &copy 5 &unknown;"),
    "variants": ("-{zh-hans:计算机;zh-hant:電腦}-很快", "计算机很快"),
    "hidden variants": ("-{H|zh-hans:a;zh-hant:b}-c-{d}-", "cd"),
    "hyphen before a template": ("non-{{nowrap|stop}}-go", "non-stop-go"),
}  # fmt: skip


@pytest.mark.parametrize(("markup", "expected"), CASES.values(), ids=CASES.keys())
def test_markup_reads_as_worked_out_by_hand(markup: str, expected: str) -> None:
    assert clean(markup).text == expected


def test_local_namespaces_come_from_the_dump() -> None:
    markup = "[[Fichèr:a.dat|thumb|x [[y]]]]Text[[Fichèr A]][[Categoria elegida:B]]"
    names = Namespaces.of(["Categoria elegida"], ["Fichèr"])
    assert clean(markup, Wiki(names)).text == "TextFichèr A\nx y"
    assert clean(markup).text != "TextFichèr A\nx y"
    aliases = "[[檔案:甲.dat|縮圖|乙]]文[[分類:丙]]"
    assert clean(aliases).text == "文\n乙"


def test_what_is_dropped_is_counted() -> None:
    cleaned = clean("{{Cite web|a}}{{cite_web}}{{#if:x}}{{nowrap|a}} [[b\n{|\n| x")
    assert cleaned.templates == {"cite web": 2, "#if": 1}
    assert cleaned.table_rows == 1
    assert cleaned.unclosed == 2


HOSTILE = {
    "braces": "{{",
    "closing braces": "}}",
    "triple braces": "{{{",
    "links": "[[",
    "closing links": "]]",
    "links with text": "[[x|",
    "closed deep": ("[[x", "]]"),
    "templates closed deep": ("{{x|", "}}"),
    "references": "<ref>",
    "references with sections": ("<ref>", "\n==x==\n", "</ref>"),
    "quotes": "'''",
    "comments": "<!--",
    "nowiki": "<nowiki>",
    "math": "<math>",
    "tables": "\n{|",
    "table ends": "\n|}",
    "tags": "<b ",
    "external links": "[http://",
    "external links with text": "[http://a b",
    "long address": ("[http://", "a"),
    "variants": "-{",
    "markers": "{{x}},",
    "markers in a parenthesis": ("({{x}}", ", {{x}}"),
    "headings": "=a",
    "spaces": " ",
    "entities": "&amp",
    "underscores": "__A",
    "arguments": ("{{convert|1", "|to|2"),
    "argument spaces": ("{{lang|", " a", "=b}}"),
    "cells": ("{|\n|", "a||", "\n|}"),
    "attributes": ("{|\n|", "a ", "b|c\n|}"),
    "attributes with values": ("{|\n|", " a=b", "|c\n|}"),
    "tables in tables": ("\n{|\n|", "\n|}"),
    "rows": ("{|", "\n|-", "\n|}"),
    "functions": "{{#if:",
    "functions closed deep": ("{{#if:x|", "}}"),
    "arguments closed deep": ("{{{1|", "}}}"),
    "four braces": "{{{{",
    "expression": ("{{#expr:", "(1+", "}}"),
    "files": "[[File:a.jpg|thumb|",
    "files closed deep": ("[[File:a.jpg|thumb|", "]]"),
    "galleries": "<gallery>",
    "readings": "<ruby><rt>",
    "options": ("[[File:a.jpg|thumb|", " 1 x", "]]"),
    "spaces in options": ("[[File:a.jpg|thumb|", " ", "]]"),
    "definitions": "\n; a : b",
    "brackets": "(\x01 ",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_pages_take_linear_time(piece: str | tuple[str, ...]) -> None:
    def seconds(count: int) -> float:
        if isinstance(piece, str):
            text = piece * count
        else:
            text = "".join(part * (count if len(part) < 10 else 1) for part in piece)
        started = time.process_time()
        clean(text)
        return time.process_time() - started

    # What else the machine does only adds: one good run of three will do.
    for _ in range(3):
        small, large = min(seconds(5_000), seconds(5_000)), seconds(100_000)
        # Twenty times the page: quadratic growth would take four hundred times as long.
        if large < 2 and large < 90 * max(small, 0.01):
            return
    pytest.fail(f"{large:.2f} s for a page of 100,000 pieces, {small:.3f} s for 5,000")
