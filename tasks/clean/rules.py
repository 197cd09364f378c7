"""All that is done to a document's text after its markup is gone, in order, with an account of it.

Repair, apparatus, lines, masks; then the filters say whether the document stays. Each rule has a
name in the recipe and in the account.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from pydantic import Field

from tasks.clean import boilerplate, privacy
from tasks.clean.boilerplate import Dropped, drop_apparatus
from tasks.clean.filters import Thresholds, Verdict, reason_to_drop
from tasks.clean.language import codes, foreign
from tasks.clean.line_filters import LineThresholds, drop_lines
from tasks.clean.privacy import mask
from tasks.clean.repair import repair
from tasks.clean.splitters import require

_CJK = ("zh", "ja", "ko", "yue", "wuu", "gan", "lzh", "nan")
_SAMPLE = 300


class Rules(Thresholds, LineThresholds):
    """What becomes of a text, and which documents stay."""

    repair: bool = Field(True, description="Repair mojibake and other broken text with ftfy")
    unicode_form: Literal["NFC", "NFKC", "none"] = Field(
        "NFC", description="Unicode normalisation; NFKC folds more, and turns 10³ into 103"
    )
    drop_sections: tuple[boilerplate.Kind, ...] = Field(
        (), description="Kinds of sections to drop that hold no prose, such as see_also"
    )
    mask: tuple[privacy.Kind, ...] = Field(
        (), description="What to mask: mail, phone, china_id, bank_card, ipv4, ipv6"
    )
    quality_filters: bool = Field(
        True, description="Drop documents that miss a threshold of words, sentences or repetition"
    )
    language: Literal["keep", "identify"] | tuple[str, ...] = Field(
        "keep",
        description="Codes of the languages that stay; identify drops nothing and names each "
        "document's; keep believes the wiki or the row",
    )
    min_language_confidence: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Documents whose language is less certain go; identify believes the wiki then",
    )


@dataclass
class Account:
    """What became of a text.

    Attributes:
        verdict: the filter that dropped the document; None where it stays.
        done: how often each rule did something: lines dropped, things masked, 1 for a repair.
        lost: characters that it took away, by rule.
        samples: by rule the first that it did, cut to a few hundred characters.
    """

    verdict: Verdict | None = None
    done: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    samples: dict[str, str] = field(default_factory=dict)

    def note(self, rule: str, sample: str, lost: int, times: int = 1) -> None:
        """A rule did something."""
        self.done[rule] += times
        self.lost[rule] += lost
        self.samples.setdefault(rule, sample[:_SAMPLE])


def prepare(rules: Rules, language: str) -> None:
    """Load what the rules need, so that a run fails before its first page and not at each.

    Raises:
        ConfigError: a package is missing, or does not know a language.
    """
    if rules.quality_filters:
        require(rules.splitter, language)
    if rules.language != "keep":
        _codes(() if rules.language == "identify" else rules.language)


def apply(text: str, language: str, rules: Rules) -> tuple[str, Account]:
    """Take a text through all rules.

    Args:
        text: a document without markup, a paragraph a line.
        language: its wiki's code, such as `en` or `zh-yue`.
        rules: what to do.

    Returns:
        What is left, and the account of it. An empty text has no verdict: it is no document.
    """
    account = Account()
    if rules.repair:
        text = _repaired(text, language, rules, account)
    elif rules.unicode_form != "none":
        normal = unicodedata.normalize(rules.unicode_form, text)
        if normal != text:
            account.note("unicode_form", _first_change(text, normal), len(text) - len(normal))
            text = normal
    if rules.drop_sections:
        text, dropped = drop_apparatus(text, language, rules.drop_sections)
        _note_lines(dropped, account)
    text, dropped = drop_lines(text, language, rules)
    _note_lines(dropped, account)
    if rules.mask:
        masked, counts = mask(text, rules.mask)
        for kind, count in counts.items():
            # A sample would publish what is masked.
            account.note(kind, privacy.MASKS[kind], 0, count)
        text = masked
    if not text:
        return text, account
    if isinstance(rules.language, tuple):
        account.verdict = foreign(text, _codes(rules.language), rules.min_language_confidence)
    if account.verdict is None and rules.quality_filters:
        account.verdict = reason_to_drop(text, language, rules)
    return text, account


def _repaired(text: str, language: str, rules: Rules, account: Account) -> str:
    cjk = language.partition("-")[0] in _CJK
    form = None if rules.unicode_form == "none" else rules.unicode_form
    fixed = repair(text, cjk, form)
    if fixed != text:
        account.note("repair", _first_change(text, fixed), len(text) - len(fixed))
    return fixed


def _first_change(before: str, after: str) -> str:
    """The first line that differs, as it was."""
    old, new = before.split("\n"), after.split("\n")
    return next((one for one, two in zip(old, new, strict=False) if one != two), "")


def _note_lines(dropped: list[Dropped], account: Account) -> None:
    for rule in dict.fromkeys(rule for rule, _ in dropped):
        lines = [line for name, line in dropped if name == rule]
        # Lines that stand together say more than a heading alone.
        sample = "\n".join(lines[:_SAMPLE])
        account.note(rule, sample, sum(map(len, lines)) + len(lines), len(lines))


@cache
def _codes(languages: tuple[str, ...]) -> frozenset[str]:
    return codes(languages)
