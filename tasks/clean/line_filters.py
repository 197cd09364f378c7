"""C4's rules for lines (Raffel et al. 2020, arXiv:1910.10683, section 2.2).

They were made for web pages, where a line without a full stop is a menu. In an encyclopaedia it is
a heading or a list item, so all but one are left out by default.
"""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field

from tasks.clean.boilerplate import Dropped, orphans
from tasks.clean.measures import TERMINALS, WITHOUT_TERMINALS
from tasks.clean.splitters import UNSPACED

_UNSPACED = re.compile(UNSPACED)
_JAVASCRIPT = re.compile("javascript", re.I)
# The phrases of C4's code, which the paper leaves out.
_POLICY = re.compile(
    "terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies", re.I
)


class LineThresholds(BaseModel):
    """What a line must be like to stay in its document."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_line_words: int = Field(0, ge=0, description="Drop lines with fewer words; C4's is 3")
    max_word_length: int = Field(1000, ge=1, description="Drop lines with a longer word")
    punctuated_lines_only: bool = Field(
        False, description="Drop lines that do not end as a sentence does, as C4 does"
    )
    drop_javascript_lines: bool = Field(False, description="Drop lines that name JavaScript")
    drop_policy_lines: bool = Field(
        False, description="Drop lines on cookies, privacy and terms of use"
    )


def drop_lines(text: str, language: str, limits: LineThresholds) -> tuple[str, list[Dropped]]:
    """Leave out the lines that a rule is against, and headings of which nothing else is left.

    Returns:
        The rest, and each line dropped with the rule's name.
    """
    if not _may_drop(text, limits):
        return text, []
    lines = text.split("\n")
    rules = [_rule_against(line, language, limits) if line.strip() else None for line in lines]
    for index in orphans(lines, [rule is not None for rule in rules]):
        rules[index] = "empty_section"
    kept = [line for line, rule in zip(lines, rules, strict=True) if rule is None]
    return "\n".join(kept), [
        Dropped(rule, line) for line, rule in zip(lines, rules, strict=True) if rule is not None
    ]


def _may_drop(text: str, limits: LineThresholds) -> bool:
    return (
        limits.min_line_words > 0
        or limits.punctuated_lines_only
        or _has_long_word(text, limits.max_word_length)
        or (limits.drop_javascript_lines and _JAVASCRIPT.search(text) is not None)
        or (limits.drop_policy_lines and _POLICY.search(text) is not None)
    )


def _has_long_word(text: str, limit: int) -> bool:
    """Whether anywhere more than `limit` characters lie between two spaces or line breaks."""
    start = 0
    while start + limit < len(text):
        end = start + limit + 1
        space = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
        if space < 0:
            return True
        start = space + 1
    return False


def _rule_against(line: str, language: str, limits: LineThresholds) -> str | None:
    words = line.split()
    unspaced = len(_UNSPACED.findall(line))
    if not unspaced and max(map(len, words)) > limits.max_word_length:
        return "long_word"
    ends = line.rstrip().endswith(TERMINALS) or language in WITHOUT_TERMINALS
    if limits.punctuated_lines_only and not ends:
        return "unpunctuated_line"
    if len(words) + unspaced // 2 < limits.min_line_words:
        return "short_line"
    if limits.drop_javascript_lines and _JAVASCRIPT.search(line):
        return "javascript_line"
    if limits.drop_policy_lines and _POLICY.search(line):
        return "policy_line"
    return None
