"""The template `convert`: `5 metres (16 ft)`, computed and rounded as Wikipedia shows it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tasks.clean.calls import Call
from tasks.clean.units import UNITS, Unit

# Languages whose brackets are as wide as their characters.
EASTERN = frozenset(("zh", "ja", "yue", "wuu", "gan", "lzh"))
# What may stand between two values: as it is shown with the units' names, and with their symbols.
_RANGES = {
    "-": ("–", "–"), "–": ("–", "–"), "&ndash;": ("–", "–"), "to": (" to ", " to "),
    "to(-)": (" to ", "–"), "to-": (" to ", "–"), "and": (" and ", " and "),
    "and(-)": (" and ", "–"), "or": (" or ", " or "), "by": (" by ", " by "),
    "x": (" by ", " × "), "×": (" by ", " × "), "*": (" by ", " × "), "xx": (" × ", " × "),
    "by(x)": (" by ", " × "), "+/-": (" ± ", " ± "), "±": (" ± ", " ± "), "+": (" + ", " + "),
    ",": (", ", ", "), "/": ("/", "/"), "&": (" & ", " & "),
    "to about": (" to about ", " to about "),
}  # fmt: skip
_VALUE = re.compile(r"([-+−]?)(\d[\d,]*\.?\d*|\.\d+)(?:e([-+−]?\d{1,2}))?")
_FRACTION = re.compile(
    r"([-−]?)(?:(\d{1,9})\s*\+\s*|(\d{1,9})\s+)?(\d{1,9})\s*(?:/{1,2}|⁄)\s*(\d{1,9})"
)
_SUBUNITS = {
    "ft": ("in", 12),
    "yd": ("ft", 3),
    "mi": ("yd", 1760),
    "lb": ("oz", 16),
    "st": ("lb", 14),
}
_COMPOSITES = {
    "ftin": ("ft", "in"), "ft in": ("ft", "in"), "stlb": ("st", "lb"), "st lb": ("st", "lb"),
    "lboz": ("lb", "oz"), "lb oz": ("lb", "oz"), "ydft": ("yd", "ft"), "miyd": ("mi", "yd"),
}  # fmt: skip


@dataclass
class _Value:
    """A number as it was written: its value, and the decimal places that it is exact to."""

    shown: str
    value: float
    places: int


def convert(call: Call) -> str:
    """What the call shows; the source's own number and unit where a unit is not known here."""
    args = call.positional
    values = [_value(args[0])] if args else []
    joints: list[tuple[str, str]] = []
    pos = 1
    while pos + 1 < len(args) and args[pos] in _RANGES:
        joints.append(_RANGES[args[pos]])
        values.append(_value(args[pos + 1]))
        pos += 2
    code = args[pos] if pos < len(args) else ""
    unit = UNITS.get(code)
    numbers = [value for value in values if value is not None]
    if unit is None or len(numbers) < len(values) or not numbers:
        return _as_written(args)
    rest = args[pos + 1 :]
    source, rest, numbers = _with_subunits(code, unit, rest, numbers, call)
    targets, places = _targets(unit, rest, numbers[0].value)
    if call["sigfig"].isdecimal():
        places = None
    if source:
        unit = UNITS[_SUBUNITS[code][0]]
    converted = [
        text
        for target in targets
        if (text := _converted(numbers, joints, unit, target, places, call))
    ]
    first = source or _quantity(
        [number.shown for number in numbers], joints, unit, call, named=not _short(call, "in")
    )
    return _together(first, converted, call)


def _value(text: str) -> _Value | None:
    match = _VALUE.fullmatch(text)
    if match:
        digits = match[2].replace(",", "")
        whole, dot, decimals = digits.partition(".")
        exponent = int((match[3] or "0").replace("−", "-"))
        places = len(decimals) if dot else len(whole.rstrip("0")) - len(whole)
        value = float(digits or 0) * 10.0**exponent
        sign = "−" if match[1] in ("-", "−") else ""
        shown = f"{int(whole or 0):,}{dot}{decimals}" + (f"×10^{exponent}" if exponent else "")
        return _Value(sign + shown, -value if sign else value, places - exponent)
    match = _FRACTION.fullmatch(text)
    if match and int(match[5]):
        whole = match[2] or match[3] or ""
        value = int(whole or 0) + int(match[4]) / int(match[5])
        shown = " ".join(filter(None, (whole, f"{match[4]}/{match[5]}")))
        places = max(round(math.log10(int(match[5]))), 1)
        return _Value(("−" if match[1] else "") + shown, -value if match[1] else value, places)
    return None


def _as_written(args: list[str]) -> str:
    """The number and the unit, as far as they can be told apart from options."""
    text = args[0] if args else ""
    rest = args[1:]
    while len(rest) >= 2 and rest[0] in _RANGES:
        text, rest = f"{text}{_RANGES[rest[0]][0]}{rest[1]}", rest[2:]
    if not rest:
        return text
    unit = UNITS.get(rest[0])
    shown = unit.symbol if unit else rest[0]
    return f"{text}{'' if shown.startswith('/') else ' '}{shown}"


def _with_subunits(
    code: str, unit: Unit, rest: list[str], numbers: list[_Value], call: Call
) -> tuple[str, list[str], list[_Value]]:
    """`5 ft 9 in`, which is written `5|ft|9|in`: its text, what follows, and the whole value."""
    if code not in _SUBUNITS or len(rest) < 2 or len(numbers) > 1:
        return "", rest, numbers
    sub, ratio = _SUBUNITS[code]
    small = _value(rest[0])
    if small is None or rest[1] != sub:
        return "", rest, numbers
    named = not _short(call, "in")
    text = " ".join(
        _quantity([number.shown], [], part, call, named=named)
        for number, part in ((numbers[0], unit), (small, UNITS[sub]))
    )
    value = numbers[0].value * ratio + math.copysign(small.value, numbers[0].value)
    return text, rest[2:], [_Value(text, value, max(small.places, 0))]


def _targets(unit: Unit, rest: list[str], value: float) -> tuple[list[str], int | None]:
    """The units to convert to, and the decimal places that the call asks for."""
    places = None
    codes: list[str] = []
    for arg in rest:
        if re.fullmatch(r"[-−]?\d", arg):
            places = int(arg.replace("−", "-"))
        elif arg and not codes:
            codes = [arg] if arg in _COMPOSITES else arg.split()
            codes = [code for code in codes if code in _COMPOSITES or code in UNITS]
    # The heights of people are told in feet and inches.
    default = ("ftin",) if unit is UNITS["m"] and 0 < value < 3 else unit.target
    return codes or list(default), places


def _converted(
    numbers: list[_Value],
    joints: list[tuple[str, str]],
    unit: Unit,
    code: str,
    places: int | None,
    call: Call,
) -> str:
    big, small = _COMPOSITES.get(code, (code, ""))
    target = UNITS[big]
    named = not _short(call, "out")
    if target.kind != unit.kind or target is unit:
        return ""
    results = [
        (number.value * unit.scale + unit.zero - target.zero) / target.scale for number in numbers
    ]
    if small:
        pairs = [_split(result, big, small, places) for result in results]
        return (joints[0][1] if joints else "").join(pairs)
    texts = []
    for number, result in zip(numbers, results, strict=True):
        exact = places
        if exact is None:
            exact = _significant(result, call["sigfig"])
        if exact is None:
            exact = _places(number, result, unit, target)
        texts.append(_rounded(result, exact))
    return _quantity(texts, joints, target, call, named=named)


def _split(result: float, big: str, small: str, places: int | None) -> str:
    ratio = _SUBUNITS[big][1]
    places = places or 0
    whole, part = divmod(round(abs(result) * ratio * 10**places) / 10**places, ratio)
    sign = "−" if result < 0 else ""
    return f"{sign}{int(whole):,} {UNITS[big].symbol} {part:.{places}f} {UNITS[small].symbol}"


def _significant(result: float, digits: str) -> int | None:
    if not digits.isdecimal() or not 0 < int(digits) < 15 or not result:
        return None
    return int(digits) - 1 - math.floor(math.log10(abs(result)))


def _places(number: _Value, result: float, unit: Unit, target: Unit) -> int:
    """The rule of the template: as exact as the source, and at least two significant figures."""
    if unit.kind == "temperature":
        kelvins = abs(number.value * unit.scale + unit.zero)
        least = 2 - math.floor(math.log10(kelvins)) if kelvins > 1e-8 else 2
        return max(number.places, least)
    if not number.value or not result:
        return 0
    fudge = 1e-14
    finer = math.log10(abs(number.value / result)) + math.log10(2)
    if number.shown.endswith(("inches", "inch", " in")):
        # Of feet and inches a centimetre is kept.
        finer = math.log10(target.scale) + 2 + math.log10(2)
    least = 1 - math.floor(math.log10(abs(result)) + fudge)
    return max(math.floor(number.places + finer), least)


def _rounded(value: float, places: int) -> str:
    places = max(-20, min(places, 12))
    factor = 10.0**places
    rounded = math.floor(abs(value) * factor + 0.5) / factor
    sign = "−" if value < 0 and rounded else ""
    return f"{sign}{rounded:,.{max(places, 0)}f}"


def _short(call: Call, side: str) -> bool:
    """True where a side's units are shown by their symbols: the converted ones usually are."""
    asked = call["abbr"]
    if call["order"] == "flip" or call["disp"] == "flip":
        side = "in" if side == "out" else "out"
    if call.language != "en":
        # The names here are English ones; symbols are everyone's.
        return True
    if side == "out":
        return asked not in ("off", "none", "no", "in")
    return asked in ("on", "in", "yes", "y") or call["adj"] == "abbr"


def _quantity(
    texts: list[str], joints: list[tuple[str, str]], unit: Unit, call: Call, *, named: bool
) -> str:
    """Values and their unit, by its name or its symbol."""
    between = [joint[0 if named else 1] for joint in joints] + [""]
    if " × " in between and not named:
        return " × ".join(f"{value} {unit.symbol}" for value in texts)
    text = "".join(value + joint for value, joint in zip(texts, between, strict=True))
    if not named:
        return f"{text}{'' if unit.symbol.startswith('/') else ' '}{unit.symbol}"
    adjective = call["adj"].startswith("on") and unit.kind != "temperature"
    one = (
        adjective
        or texts[-1] in ("1", "−1")
        or (len(texts) == 1 and "/" in texts[0] and " " not in texts[0])
    )
    name = unit.name if one else unit.plural
    if call["sp"] == "us":
        name = name.replace("metre", "meter").replace("litre", "liter")
    joint = "-" if adjective else " "
    return text + joint + (name.replace(" ", "-") if adjective else name)


def _together(first: str, converted: list[str], call: Call) -> str:
    shown = call["disp"]
    if not converted or shown in ("in", "input"):
        return first
    other = "; ".join(converted)
    if shown in ("out", "output only"):
        return other
    if shown in ("number", "output number only"):
        return other.partition(" ")[0]
    if shown == "flip" or call["order"] == "flip":
        first, other = other, first
    if shown == "or":
        return f"{first} or {other}"
    if shown in ("comma", "slash", "/"):
        return f"{first}{', ' if shown == 'comma' else '/'}{other}"
    if call.language.partition("-")[0] in EASTERN:
        return f"{first}（{other}）"
    return f"{first} ({other})"
