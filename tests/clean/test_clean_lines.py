"""Lines that a rule drops, and those beside them that it must not."""

from __future__ import annotations

import pytest

from tasks.clean.boilerplate import Kind, drop_apparatus, kind_of, orphans
from tasks.clean.line_filters import LineThresholds, drop_lines

ALL: tuple[Kind, ...] = (
    "references",
    "external_links",
    "see_also",
    "further_reading",
    "categories",
)
PROSE = "The wall was built by the people of the town, and it has stood there for a long time. " * 6
ARTICLE = f"""\
A wall is a wall.
History
{PROSE}
See also
Gate
Tower
References
Smith, J. (1990). Walls. Example Press.
External links
The wall's own page"""


@pytest.mark.parametrize(
    ("heading", "language", "kind"),
    [
        ("See also", "en", "see_also"),
        ("External links", "simple", "external_links"),
        ("参考文献：", "zh-yue", "references"),
        ("參考文獻", "zh", "references"),
        ("関連項目", "ja", "see_also"),
        ("Външни препратки", "bg", "external_links"),
        ("Weblinks", "de", "external_links"),
        ("History", "en", None),
        ("See also", "xx", None),
    ],
)
def test_headings_are_known_by_language(heading: str, language: str, kind: Kind | None) -> None:
    assert kind_of(heading, language) == kind


def test_apparatus_at_the_end_goes_and_is_counted() -> None:
    text, dropped = drop_apparatus(ARTICLE, "en", ALL)
    assert text == ARTICLE[: ARTICLE.index("\nSee also")]
    assert [name for name, _ in dropped] == (
        ["see_also"] * 3 + ["references"] * 2 + ["external_links"] * 2
    )
    text, dropped = drop_apparatus(ARTICLE, "en", ["references"])
    assert "Gate" in text
    assert "own page" in text
    assert [line for _, line in dropped] == ARTICLE.split("\n")[6:8]


def test_prose_after_a_heading_of_apparatus_stays() -> None:
    # In an article on notes, "Notes" is a section like another.
    text = f"Money is paper.\nNotes\nNotes are printed.\n{PROSE}\nCoins\nCoins are struck."
    assert drop_apparatus(text, "en", ALL) == (text, [])
    assert drop_apparatus("References", "en", ALL) == ("References", [])


def test_left_over_categories_go() -> None:
    text = "A wall.\nCategory: Walls\nThe category: walls and gates.\n分类：城墙"
    kept, dropped = drop_apparatus(text.replace("：", ":"), "zh", ["categories"])
    assert kept == "A wall.\nThe category: walls and gates."
    assert {name for name, _ in dropped} == {"categories"}


TOWN = """\
The town lies on a river.
Literature
Most of the poets of the town wrote about the river and its many bridges.
Music
The orchestra of the town plays in the old hall near the market.
Cuisine
Soups of fish and beans are what people eat there in the winter.
References
Smith, J. (1990). Towns. Example Press."""


def test_a_section_of_prose_ends_with_the_next_heading() -> None:
    text, dropped = drop_apparatus(TOWN, "en", ALL)
    lines = TOWN.split("\n")
    assert text.split("\n") == [lines[0], *lines[3:7]]
    assert [line for _, line in dropped] == [*lines[1:3], *lines[7:]]
    # Annotated links are no prose under headings, for their section does not begin with prose.
    links = "A wall.\nSee also\nGate\nTower\nThe tower is what one sees from the river."
    assert drop_apparatus(links, "en", ALL)[0] == "A wall."


def test_headings_go_with_all_that_stood_below_them() -> None:
    lines = ["It is a wall.", "History", "x", "y", "Gates", "They are old.", "Towers", "z"]
    gone = [line in "xyz" for line in lines]
    assert [lines[index] for index in orphans(lines, gone)] == ["History", "Towers"]
    assert orphans(lines, [False] * len(lines)) == []
    # Prose stays behind what goes; an item of a list is no heading.
    assert orphans(["A wall.", "History", "x", "It is old."], [False, False, True, False]) == []
    assert orphans(["A wall.", "Gate", "Tower", "x", "Moat"], [False] * 3 + [True, False]) == []
    limits = LineThresholds(drop_policy_lines=True)
    text = "The wall is high.\nPrivacy\nThis site uses cookies to make it better."
    kept, dropped = drop_lines(text, "en", limits)
    assert kept == "The wall is high."
    assert [rule for rule, _ in dropped] == ["empty_section", "policy_line"]


LINES = {
    "unpunctuated_line": "Home | About | Contact us",
    "short_line": "Click here.",
    "javascript_line": "Please turn on JavaScript to see this page.",
    "policy_line": "This site uses cookies to make it better.",
    "long_word": "See " + "x" * 1001 + " for more.",
}
C4 = LineThresholds(
    min_line_words=3, punctuated_lines_only=True, drop_javascript_lines=True, drop_policy_lines=True
)


@pytest.mark.parametrize("rule", LINES)
def test_a_line_goes_by_its_rule(rule: str) -> None:
    text = f"The wall is high.\n{LINES[rule]}\nIt stays for long."
    assert drop_lines(text, "en", C4) == (
        "The wall is high.\nIt stays for long.",
        [(rule, LINES[rule])],
    )


def test_lines_of_an_encyclopaedia_stay_by_default() -> None:
    text = "\n".join(LINES[rule] for rule in LINES if rule != "long_word")
    assert drop_lines(text, "en", LineThresholds()) == (text, [])


def test_scripts_without_spaces_have_no_long_words() -> None:
    chinese = "长城是中国古代的军事工程，" * 100 + "完。"
    assert drop_lines(chinese, "zh", C4) == (chinese, [])
    assert drop_lines("กำแพงเมืองจีนเป็นกำแพง", "th", C4)[1] == []
    assert drop_lines("长城。", "zh", C4)[1] == [("short_line", "长城。")]
