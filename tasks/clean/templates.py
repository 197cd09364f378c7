"""Inline templates as readable text: a table from a template's name to what readers see.

Wikipedia's articles call some 100,000 templates, but a few dozen carry words and numbers *inside*
a sentence; without them "a wall of {{convert|5|m|ft}}" loses its number. What is not in the table
is furniture (infoboxes, citations, hatnotes) and is dropped by the caller, who counts it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# Stand-ins for characters that would be taken for markup; `wikitext.clean` puts the characters.
PIPE, APOSTROPHE = "\x02", "\x04"

Renderer = Callable[[list[str], dict[str, str]], str]

_KEY = re.compile(r"[\w .-]{1,30}")
_SUPERSCRIPT = str.maketrans("0123456789+-−–", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻")
_MONTHS = (
    "January February March April May June July August September October November December"
).split()


def render(name: str, body: str) -> str | None:
    """What a template call shows, or None where the template is not in the table.

    Args:
        name: the template's name, in lower case.
        body: what follows the name's `|`, with nested markup already rendered.
    """
    if name.startswith("formatnum:"):
        return _grouped(name.removeprefix("formatnum:"))
    renderer = _TABLE.get(name.replace("-", " "), _first if name.startswith("lang-") else None)
    if renderer is None:
        return None
    positional: list[str] = []
    named: dict[str, str] = {}
    for part in body.split("|"):
        key, equals, value = part.partition("=")
        if equals and _KEY.fullmatch(key.strip()):
            named[key.strip()] = value.strip()
        else:
            positional.append(part.strip())
    numbered = [named[str(index)] for index in range(1, 10) if str(index) in named]
    return renderer(numbered if numbered and not any(positional) else positional, named)


def superscript(text: str) -> str:
    """Digits and signs raised: `-3` to `⁻³`."""
    return text.translate(_SUPERSCRIPT)


def _arg(args: list[str], index: int) -> str:
    return args[index] if index < len(args) else ""


def _first(args: list[str], named: dict[str, str]) -> str:
    return _arg(args, 0)


def _second(args: list[str], named: dict[str, str]) -> str:
    return _arg(args, 1)


def _last(args: list[str], named: dict[str, str]) -> str:
    return args[-1] if args else ""


def _constant(text: str) -> Renderer:
    return lambda args, named: text


def _joined(separator: str) -> Renderer:
    return lambda args, named: separator.join(filter(None, args))


def _around(before: str, after: str = "") -> Renderer:
    return lambda args, named: f"{before}{_arg(args, 0)}{after}"


def _block(args: list[str], named: dict[str, str]) -> str:
    return f"\n{named.get('text') or named.get('quote') or _arg(args, 0)}\n"


def _lines(args: list[str], named: dict[str, str]) -> str:
    return "\n" + "\n".join(filter(None, args)) + "\n"


_RANGES = {
    "-": "–", "–": "–", "to": " to ", "to(-)": " to ", "and": " and ", "or": " or ", "by": " by ",
    "x": " × ", "×": " × ", "xx": " × ", "*": " × ", "+/-": " ± ", "±": " ± ", "and(-)": " and ",
}  # fmt: skip
_UNITS = {
    "sqmi": "sq mi", "sqft": "sq ft", "sqkm": "km²", "sqm": "m²", "km2": "km²", "m2": "m²",
    "cm2": "cm²", "mm2": "mm²", "mi2": "sq mi", "ft2": "sq ft", "km3": "km³", "m3": "m³",
    "cm3": "cm³", "cumi": "cu mi", "cuft": "cu ft", "cuin": "cu in", "acre": "acres", "C": "°C",
    "F": "°F", "kph": "km/h", "C-change": "°C", "F-change": "°F", "inch": "inches",
    "foot": "feet", "/km2": "/km²", "/sqmi": "/sq mi", "/sqkm": "/km²", "PD/km2": "/km²",
    "PD/sqmi": "/sq mi", "m3/s": "m³/s", "cuft/s": "cu ft/s", "g/cm3": "g/cm³",
    "kg/m3": "kg/m³", "mile": "miles", "metre": "metres", "meter": "meters", "nmi": "nmi",
}  # fmt: skip


def _convert(args: list[str], named: dict[str, str]) -> str:
    """The source's own number and unit; the converted value is MediaWiki's computation."""
    text, rest = _arg(args, 0), args[1:]
    while len(rest) >= 2 and rest[0] in _RANGES:
        text, rest = f"{text}{_RANGES[rest[0]]}{rest[1]}", rest[2:]
    unit = _arg(rest, 0)
    text += f"{'' if unit.startswith('/') else ' '}{_UNITS.get(unit, unit)}" if unit else ""
    # "5 ft 9 in" is written {{convert|5|ft|9|in|m}}.
    while len(rest) >= 3 and re.fullmatch(r"[\d.,]+", rest[1]) and unit in ("ft", "lb", "st", "yd"):
        text, rest = f"{text} {rest[1]} {_UNITS.get(rest[2], rest[2])}", rest[2:]
        unit = rest[0]
    return text.strip()


def _val(args: list[str], named: dict[str, str]) -> str:
    text = _arg(args, 0)
    if _arg(args, 1):
        text += f"+{args[1]}−{args[2].lstrip('-−')}" if _arg(args, 2) else f"±{args[1]}"
    if named.get("e"):
        text += f"×10{superscript(named['e'])}"
    unit = named.get("u") or named.get("ul") or ""
    if named.get("up") or named.get("upl"):
        unit += "/" + (named.get("up") or named["upl"])
    return f"{text} {unit}".strip() if unit not in ("%", "°") else text + unit


def _grouped(text: str) -> str:
    text = text.split("|")[0].strip()
    whole, dot, fraction = text.partition(".")
    if not re.fullmatch(r"-?\d{4,}", whole) or not re.fullmatch(r"\d*", fraction):
        return text
    return f"{int(whole):,}{dot}{fraction}"


def _frac(args: list[str], named: dict[str, str]) -> str:
    args = [arg for arg in args if arg]
    if len(args) == 3:
        return f"{args[0]} {args[1]}/{args[2]}"
    return f"1/{args[0]}" if len(args) == 1 else "/".join(args[:2])


def _as_of(args: list[str], named: dict[str, str]) -> str:
    if named.get("alt"):
        return named["alt"]
    lead = ("Since" if named.get("since") else "As of", _date(args, named))
    text = " ".join(filter(None, lead))
    return text[0].lower() + text[1:] if named.get("lc") else text


def _date(args: list[str], named: dict[str, str]) -> str:
    year, month, day = (_arg(args, index) for index in range(3))
    if month.isdigit() and 1 <= int(month) <= 12:
        month = _MONTHS[int(month) - 1]
    return " ".join(filter(None, (day.lstrip("0"), month, year)))


def _nihongo(args: list[str], named: dict[str, str]) -> str:
    english, extra = _arg(args, 0), ", ".join(filter(None, args[1:3]))
    if not english:
        return extra
    return f"{english} ({extra})" if extra else english


def _chinese(args: list[str], named: dict[str, str]) -> str:
    keys = ("c", "s", "t", "p")
    return ", ".join(dict.fromkeys(named[key] for key in keys if named.get(key))) or _arg(args, 0)


def _ship(args: list[str], named: dict[str, str]) -> str:
    return " ".join(filter(None, args[:2]))


def _reading(args: list[str], named: dict[str, str]) -> str:
    return f"{_arg(args, 0)}（{_arg(args, 1)}）" if _arg(args, 1) else _arg(args, 0)


def _table() -> dict[str, Renderer]:
    groups: list[tuple[str, Renderer]] = [
        ("nowrap nobr nobreak nowrap-begin small smaller big larger large sc smallcaps em strong "
         "bold nobold noitalic abbr tooltip mvar math var vanchor visible-anchor sub code kbd samp "
         "tt mono nts number unicode flag flagcountry flagu ill interlanguage-link sic "
         "not-a-typo proper-name script/hebrew script/arabic hebrew nastaliq underline u s del "
         "ins serif sans-serif center dfn q inline-block nihongo2 nihongo3 chem2 ce 仮リンク",
         _first),
        ("lang langx script lang-rtl", _second),
        ("resize font color sort native-name transl transliteration translit tlit", _last),
        ("convert cvt", _convert),
        ("val", _val),
        ("frac fraction sfrac fracn", _frac),
        ("circa ca. ca c.", _around("c. ")),
        ("floruit fl.", _around("fl. ")),
        ("as-of asof", _as_of),
        ("date dts start-date start-date-and-age", _date),
        ("quote blockquote bquote cquote quotation rquote poemquote quote-poem", _block),
        ("nihongo nihongo-foot", _nihongo),
        ("zh zh-hans zh-hant", _chinese),
        ("chem linktext", _joined("")),
        ("hlist flatlist", _joined(", ")),
        ("plainlist ubl unbulleted-list vunblist bulleted-list", _lines),
        ("keypress key-press", _joined("+")),
        ("angbr angle-bracket", _around("⟨", "⟩")),
        ("sup", lambda args, named: superscript(_arg(args, 0))),
        ("e", lambda args, named: f"×10{superscript(_arg(args, 0))}"),
        ("pow", lambda args, named: f"{_arg(args, 0)}{superscript(_arg(args, 1))}"),
        ("sortname", _ship),
        ("formatnum", lambda args, named: _grouped(_arg(args, 0))),
        ("ship", _ship),
        ("uss", lambda args, named: f"USS {_arg(args, 0)}"),
        ("hms", lambda args, named: f"HMS {_arg(args, 0)}"),
        ("us$ usd", _around("US$")),
        ("£ gbp", _around("£")),
        ("€ eur euro", _around("€")),
        ("isbn isbn2", _around("ISBN ")),
        ("bibleverse bibleref bibleref2", lambda args, named: " ".join(filter(None, args[:2]))),
        ("読み仮名 読み仮名-ruby不使用 ruby ルビ", _reading),
        ("· • dot middot bullet", _constant(" · ")),
        ("– ndash en-dash endash", _constant("–")),
        ("— mdash em-dash emdash", _constant("—")),
        ("snd spnd spaced-ndash spaced-en-dash", _constant(" – ")),
        ("mdashb smdash", _constant(" — ")),
        ("nbsp spaces space thinsp thin-space hair-space hsp sp", _constant(" ")),
        # An apostrophe must not join the quotes of italics around it.
        ("' apos", _constant(APOSTROPHE)),
        ("'s", _constant(f"{APOSTROPHE}s")),
        ("= equals", _constant("=")),
        # A rendered pipe must not divide the arguments of the template around it.
        ("! pipe", _constant(PIPE)),
        ("okina hamza", _constant("ʻ")),
        ("times", _constant("×")),
        ("pi", _constant("π")),
    ]  # fmt: skip
    return {
        name.replace("-", " "): renderer for names, renderer in groups for name in names.split()
    }


_TABLE = _table()
