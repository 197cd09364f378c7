"""Templates: those of the table against what Wikipedia shows, those of a dump against MediaWiki."""

from __future__ import annotations

import pickle
import time
from datetime import date
from pathlib import Path

import pytest

from tasks.clean.library import Library
from tasks.clean.templates import TEMPLATES
from tasks.clean.wiki import PageTimeout, Wiki
from tasks.clean.wikitext import clean
from tasks.core.errors import ConfigError

# As the documentation of English Wikipedia's templates shows them.
SHOWN = {
    "{{convert|2|km|mi}}": "2 kilometres (1.2 mi)",
    "{{convert|7|mi|km}}": "7 miles (11 km)",
    "{{convert|37|mm|in}}": "37 millimetres (1.5 in)",
    "{{convert|84|F|C}}": "84 °F (29 °C)",
    "{{convert|98.6|F|C}}": "98.6 °F (37.0 °C)",
    "{{convert|1.75|m}}": "1.75 metres (5 ft 9 in)",
    "{{convert|1|lb}}": "1 pound (0.45 kg)",
    "{{convert|500|g}}": "500 grams (18 oz)",
    "{{convert|6|ft|5|in|m}}": "6 feet 5 inches (1.96 m)",
    "{{convert|22|-|28|mi}}": "22–28 miles (35–45 km)",
    "{{convert|6|to|17|kg}}": "6 to 17 kilograms (13 to 37 lb)",
    "{{convert|60|and|170|kg|lb}}": "60 and 170 kilograms (130 and 370 lb)",
    "{{convert|100|km/h|mph|abbr=on}}": "100 km/h (62 mph)",
    "{{convert|26|mi|sp=us}}": "26 miles (42 km)",
    "a {{convert|5|mi|km|adj=on}} walk": "a 5-mile (8.0 km) walk",
    "{{convert|100|m|ft|order=flip}}": "330 feet (100 m)",
    "{{convert|7|m|ft|sigfig=4}}": "7 metres (22.97 ft)",
    "{{convert|20320|ft|m|0}}": "20,320 feet (6,194 m)",
    "{{convert|1000|/sqmi}}": "1,000 per square mile (390/km²)",
    "{{cvt|10|x|20|m}}": "10 m × 20 m (33 ft × 66 ft)",
    "{{convert|30|kn}}": "30 knots (56 km/h; 35 mph)",
    "{{convert|12|smoot|m}}": "12 smoot",
    "{{val|12345.6|u=m}}": "12,345.6 m",
    "{{frac|1|2}}": "1/2",
    "{{langx|ru|дом|dom|lit=house}}": "дом, dom, “house”",
    "{{transliteration|ru|dom}}": "dom",
    "{{birth date and age|1950|3|2}}": "March 2, 1950",
    "{{birth date|1950|3|2|df=yes}}": "2 March 1950",
    "{{dts|2010|06|12}}": "12 June 2010",
    "{{as of|2015|3|lc=y}}": "as of March 2015",
    "{{age|1950|3|2|2000|3|1}}": "49",
    "{{coord|57|18|22|N|4|27|32|W|display=inline}}": "57°18′22″N 4°27′32″W",
    "{{coord|44.112|-87.913}}": "44.112°N 87.913°W",
    "a{{coord|44.112|-87.913|display=title}}": "a",
    "{{sortname|Ada|Lovelace}}": "Ada Lovelace",
    "{{c.|1900|1910}}": "c. 1900 – c. 1910",
    "{{ordinal|112}}": "112th",
    "{{hlist|a|b}}": "a, b",
    "{{ubl|a|[[b]]}}": "a\nb",
    "{{nihongo||東京}}": "(東京)",
    "a {{ket|x}}": "a |x⟩",
    "{{US$|5}} and {{£|6}}": "US$5 and £6",
    "{{bibleverse|1|Cor|13:4}} {{bibleverse||Gen|1:1}}": "1 Cor 13:4 Gen 1:1",
    "{{ill|Ada|de|Ada (Name)|lt=she}}": "she",
}


@pytest.mark.parametrize(("call", "shown"), SHOWN.items())
def test_a_template_of_the_table_shows_what_wikipedia_shows(call: str, shown: str) -> None:
    assert clean(call).text == shown


EASTERN = {
    "{{convert|5|km|mi}}": "5 km（3.1 mi）",
    "{{生年月日|1950|03|2}}": "1950年3月2日",
    "{{birth date and age|1950|3|2}}": "1950年3月2日",
    "{{読み仮名|漢字|かんじ}}": "漢字（かんじ）",
    "{{仮リンク|名前|en|Name}}": "名前",
    "{{link-en|中文|English}}": "中文",
    "某人{{bd|1893年|12月26日|1976年||Mou}}": "某人（1893年12月26日－1976年）",
}


@pytest.mark.parametrize(("call", "shown"), EASTERN.items())
def test_a_template_in_east_asia(call: str, shown: str) -> None:
    assert clean(call, Wiki(language="ja")).text == shown


def test_a_recipe_extends_the_table() -> None:
    table = "# ours\nmy box => <{1|title}>[ of {2}]\nconvert => {1}\nlang =>\n*-note => n{last}"
    wiki = Wiki(templates=TEMPLATES.extended(table, "mine.txt"))
    text = "{{My_box|a}} {{my box|title=b|2=c}} {{convert|5|m}} {{lang|fr|x}} {{foot-note|1|2}}"
    assert clean(text, wiki).text == "<a> <b> of c 5 n2"
    assert clean("{{nowrap|a}}", wiki).text == "a"
    # Also where a name with a star of the table stands for it.
    extended = Wiki(templates=TEMPLATES.extended("lang-x* => X{1}", "mine.txt"))
    assert clean("{{lang-xy|a}} {{lang-de|b}}", extended).text == "Xa b"
    with pytest.raises(ConfigError, match="line 2"):
        TEMPLATES.extended("a => b\nno rule", "mine.txt")
    with pytest.raises(ConfigError, match="line 1"):
        TEMPLATES.extended("a => @nothing", "mine.txt")


LIBRARY = {
    "Greeting": "<noinclude>Documentation</noinclude>Hello{{#if:{{{1|}}}|, {{{1}}}}}!",
    "Hi": "#REDIRECT [[Template:Greeting]]",
    "Measure": "#REDIRECT [[Template:Convert]]",
    "Size": "{{#switch:{{{1|}}}|s|small=little|l=large|#default=no size}}",
    "Row": "{{{!}} class=x\n! a !! b\n{{!}}-\n| {{{1}}} || {{{2}}}\n|}",
    "Twice": "{{{1}}}{{{1}}}",
    "Named": "{{{name|{{{1|none}}}}}} [[{{{link}}}|there]] {{convert|5|m}}",
    "Only": "x<onlyinclude>y</onlyinclude>z",
    "Loop": "round {{Loop}}",
    "Navigation": '<table class="navbox"><tr><td>Elsewhere</td></tr></table>',
    "Lua": "{{#invoke:Module|main}}",
    "Wrong": "{{#expr:1/0}}",
    "Lookup": "{{Inner|{{{1}}}}}",
    "Inner": "<!-- c -->{{lc:{{{1}}}}}{{padleft:7|3}}",
    **{f"Bomb{level}": f"{{{{Bomb{level + 1}}}}}" * 10 for level in range(9)},
    "Bomb9": "boom",
}
EXPANDED = {
    "{{Greeting|Ada}} {{hi}}": "Hello, Ada! Hello!",
    "{{measure|5|m}}": "5 metres (16 ft)",
    "{{Size|s}}, {{size|l}}, {{size|x}}": "little, large, no size",
    "{{Row|1|2}}": "a | b\n1 | 2",
    "{{Twice|{{nowrap|a}}}}": "aa",
    "{{Named|link=x|name=N}}": "N there 5 metres (16 ft)",
    "{{Named|link=x}}": "none there 5 metres (16 ft)",
    "{{Only}}": "y",
    "{{Loop}}": "round",
    "a {{Navigation}} b": "a b",
    "a {{Lua}} b": "a b",
    "a {{Wrong}} b": "a b",
    "{{Lookup|ABC}}": "abc007",
    "{{nowrap|{{Greeting|Ada}}}}": "Hello, Ada!",
    "{{Bomb0}}after": "after",
    "{{#if: |no|yes}}{{#ifeq:1|1.0|=|≠}}": "yes=",
    "{{#ifexpr:2 > 1 and not 0|more|less}}": "more",
    "{{#iferror:{{#expr:1 +}}|bad|good}}": "bad",
    "{{#expr:(2+3)*4^2/10 round 1}} {{#expr:7 mod 4}} {{#expr:-2^2}}": "8 3 4",
    "{{#time:j F Y|2010-03-02}} {{#time:D|2 March 2010 +1 day}}": "2 March 2010 Wed",
    "{{CURRENTYEAR}} {{PAGENAME}} {{SITENAME}}": "2024 Page Wikipedia",
    "{{#titleparts:a/b/c|1|2}} {{#len:four}} {{uc:up}} {{ucfirst:first}}": "b 4 UP First",
    "{{formatnum:1234567.5}} {{formatnum:1,234|R}}": "1,234,567.5 1234",
    "{{lc:{{{1|ABC}}}}}": "abc",
    "{{#tag:ref|note}}x": "x",
    "{{#replace:<nowiki>d</nowiki>|0|7}}e": "e",
}


@pytest.mark.parametrize(("markup", "shown"), EXPANDED.items())
def test_a_template_of_the_dump_is_expanded(markup: str, shown: str) -> None:
    wiki = Wiki(library=LIBRARY, today=date(2024, 5, 1))
    assert clean(markup, wiki, "Page").text == shown


def test_what_is_dropped_inside_a_template_is_counted() -> None:
    cleaned = clean("{{Lua}} {{Navigation}} {{nobody|x}}", Wiki(library=LIBRARY))
    assert cleaned.templates == {"lua": 1, "#invoke": 1, "navigation": 1, "nobody": 1}
    assert cleaned.samples["nobody"] == "{{nobody|x}}"


def test_a_page_beyond_its_time_is_left() -> None:
    slow = {"Slow0": "{{#if:x|" * 5 + "{{Slow1}}" * 400 + "}}" * 5, "Slow1": "{{Slow2}}" * 400}
    wiki = Wiki(library={**slow, "Slow2": "{{{1|}}}"}, seconds=0.05)
    started = time.monotonic()
    with pytest.raises(PageTimeout, match=r"0\.05 s"):
        clean("{{Slow0}}", wiki)
    assert time.monotonic() - started < 2


def test_what_is_repeated_without_end_is_cut_off() -> None:
    library = {"Ten": "{{{1}}}" * 10, "Thousand": "{{Ten|{{Ten|{{Ten|{{{1}}}}}}}}}"}
    cleaned = clean(f"{{{{Thousand|<pre>{'x' * 20_000}</pre>}}}}", Wiki(library=library))
    assert 4_900_000 < len(cleaned.text) <= 5_000_000
    assert cleaned.lost == {"repetitions": 15_000_000}


def test_a_library_in_a_file_is_read_by_any_process(tmp_path: Path) -> None:
    pairs = [("A", "first"), ("B", "b"), ("A", "last")]
    library = pickle.loads(pickle.dumps(Library.write(tmp_path / "templates.db", pairs)))
    assert dict(library) == {"A": "last", "B": "b"}
    assert library.get("C") is None
    assert len(library) == 2
    assert clean("{{a}}", Wiki(library=library)).text == "last"
