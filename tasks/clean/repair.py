"""ftfy's repair of broken text, at the speed of a few searches where nothing is broken.

ftfy takes every line through a dozen steps, each of which needs certain characters before it can
change anything. A search for them finds the lines that ftfy itself must see. The steps that look
at one character at a time (ligatures, width, quotes) and normalisation are done on all the rest at
once.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from ftfy import TextFixerConfig

Form = Literal["NFC", "NFKC"]

# Controls, line breaks of other systems, surrogates: rare, so ftfy gets the whole line.
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u206a-\u206f\ud800-\udfff\ufeff\ufff9-\ufffc"
_CONTROL = re.compile(f"[{_CONTROLS}]")
_QUOTES = (0x2BC, *range(0x2018, 0x2020))
# ftfy looks at no more characters at once.
_SEGMENT = 1_000_000


def repair(text: str, cjk: bool = False, form: Form | None = "NFC") -> str:
    """The same as `ftfy.fix_text(text, normalization=form)`, but faster.

    Args:
        text: any text.
        cjk: leave curly quotes and full-width forms as they are, for they are the right
            punctuation in Chinese, Japanese and Korean; the same as
            `ftfy.fix_text(text, uncurl_quotes=False, fix_character_width=False)`.
        form: the Unicode normalisation. NFKC folds more, and loses with it: 10³ becomes 103.
    """
    steps = _steps(cjk, form)
    if not steps.any.search(text) and not steps.entity.search(text) and _is_normal(text, form):
        return text
    if len(text) > _SEGMENT and max(map(len, text.split("\n"))) >= _SEGMENT:
        return _ftfy(text, steps.config)
    # ftfy unescapes entities up to the first line with a "<", taken as a sign of HTML.
    html = text.find("<")
    escaped = len(text) if html < 0 else text.rfind("\n", 0, html) + 1
    repaired: list[str | None] = []
    position = 0
    for start, end in _broken_lines(text, escaped, steps):
        repaired.append(_by_character(text[position:start], steps))
        config = steps.config._replace(unescape_html="auto" if start < escaped else False)
        repaired.append(_ftfy(text[start:end], config))
        position = end
    repaired.append(_by_character(text[position:], steps))
    known = [piece for piece in repaired if piece is not None]
    return "".join(known) if len(known) == len(repaired) else _ftfy(text, steps.config)


class _Steps(NamedTuple):
    """What one way of repairing looks for.

    Attributes:
        config: the same for ftfy.
        form: the normalisation.
        any: is found in every text that is not plain, entities and normalisation apart.
        doubt: is found in every line that ftfy's search for mojibake or its steps for controls
            can answer to.
        entity: ftfy's entities.
        single: the characters that `table` replaces, whatever stands beside them.
    """

    config: TextFixerConfig
    form: Form | None
    any: re.Pattern[str]
    doubt: re.Pattern[str]
    entity: re.Pattern[str]
    single: re.Pattern[str]
    table: dict[str, str]


@cache
def _steps(cjk: bool, form: Form | None) -> _Steps:
    import ftfy
    from ftfy import chardata, fixes

    table = {code: fixes.fix_latin_ligatures(chr(code)) for code in chardata.LIGATURES}
    if not cjk:
        table |= {code: fixes.fix_character_width(chr(code)) for code in chardata.WIDTH_MAP}
        table |= {code: chr(code) for code in _QUOTES}
        table = {code: fixes.uncurl_quotes(fixed) for code, fixed in table.items()}
    config = ftfy.TextFixerConfig(
        explain=False, uncurl_quotes=not cjk, fix_character_width=not cjk, normalization=form
    )
    single = "".join(map(chr, table))
    return _Steps(
        config,
        form,
        _doubt(single),
        _doubt(),
        chardata.HTML_ENTITY_RE,
        re.compile(f"[{single}]"),
        {chr(code): fixed for code, fixed in table.items()},
    )


def _doubt(others: str = "") -> re.Pattern[str]:
    """A guard before ftfy's `is_bad`, a long alternation over a table of categories; and `others`.

    Each of its branches holds a C1 control, or one of Œ œ Ã Â Ђ, or two neighbours from the table:
    none of them a common letter of Greek or Cyrillic; or such a letter before an accented capital
    or a sign of mojibake; or one of those few that are mojibake themselves before anything odd.
    A test holds this against ftfy.
    """
    from ftfy.badness import MOJIBAKE_CATEGORIES

    common = MOJIBAKE_CATEGORIES["upper_common"] + MOJIBAKE_CATEGORIES["lower_common"]
    signs = MOJIBAKE_CATEGORIES["bad"] + MOJIBAKE_CATEGORIES["upper_accented"]
    odd = "".join(
        characters
        for name, characters in MOJIBAKE_CATEGORIES.items()
        if name not in ("upper_common", "lower_common")
    )
    alone = f"{_CONTROLS}ŒœÃÂЂ{others}"
    # One class in front lets `re` skip everything else at the speed of a table look-up.
    return re.compile(
        f"[{odd}{common}{alone}]"
        f"(?:(?<=[{alone}])|(?<=[{odd}ВГРСΒΓΞΟβ])[{odd}]|(?<=[{common}])[{signs}])"
    )


def _broken_lines(text: str, escaped: int, steps: _Steps) -> Iterator[tuple[int, int]]:
    """Start and end of each line in which ftfy changes more than single characters.

    Entities count up to `escaped`.
    """
    from ftfy.badness import is_bad

    found = chain(steps.doubt.finditer(text), steps.entity.finditer(text, 0, escaped))
    end = 0
    for place in sorted(match.end() - 1 for match in found):
        if place < end:
            continue
        # No further back than the last line: one long line may hold a match at every character.
        start = max(end, text.rfind("\n", end, place) + 1)
        end = text.find("\n", start) + 1 or len(text)
        line = text[start:end]
        entity = start < escaped and steps.entity.search(line)
        if entity or _CONTROL.search(line) or is_bad(line):
            yield start, end


def _by_character(text: str, steps: _Steps) -> str | None:
    """Text in which no line is broken, after the steps for single characters.

    None where such a step lays open what another looks for, as in an entity in full-width letters.
    """
    while True:
        fixed = text
        # Few kinds of them, many times each; what takes their place is none of them.
        for character in set(steps.single.findall(text)):
            fixed = fixed.replace(character, steps.table[character])
        normal = _is_normal(fixed, steps.form)
        if steps.form and not normal:
            fixed = unicodedata.normalize(steps.form, fixed)
        if fixed == text:
            return text
        if next(_broken_lines(fixed, len(fixed), steps), None):
            return None
        if normal:
            return fixed
        text = fixed


def _is_normal(text: str, form: Form | None) -> bool:
    return form is None or unicodedata.is_normalized(form, text)


def _ftfy(text: str, config: TextFixerConfig) -> str:
    import ftfy

    return ftfy.fix_text(text, config)
