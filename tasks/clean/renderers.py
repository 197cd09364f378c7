"""The templates whose text takes more than a pattern: numbers, dates, coordinates, languages."""

from __future__ import annotations

import re
from datetime import date

from tasks.clean.calls import Call, Renderer, superscript
from tasks.clean.convert import EASTERN, convert

MONTHS = (
    "January February March April May June July August September October November December"
).split()
_DIRECTIONS = frozenset("NSEWO")
_NUMBER = re.compile(r"[-+−]?[\d,]*\.?\d+")
_NOTES = {"sharp": "♯", "#": "♯", "flat": "♭", "b": "♭", "natural": "♮", "n": "♮"}


def grouped(text: str) -> str:
    """A number with its thousands divided by commas; other text as it is."""
    text = text.strip()
    sign, rest = (text[0], text[1:]) if text[:1] in ("-", "−", "+") else ("", text)
    whole, dot, fraction = rest.partition(".")
    if not re.fullmatch(r"[0-9]{4,30}", whole) or not re.fullmatch(r"[0-9]*", fraction):
        return text
    return f"{sign}{int(whole):,}{dot}{fraction}"


def _lang(call: Call) -> str:
    """`{{lang|fr|été}}`, `{{langx|ru|дом|dom|house}}`; the language's name is furniture."""
    shown = call.first("2", "text", "1" if call.count == 1 else "2")
    extra = call.first("tr", "3", "translit")
    meaning = call.first("lit", "4", "translation")
    shown += f", {extra}" if extra and shown else ""
    return shown + (f", “{meaning}”" if meaning and shown else "")


def _chinese(call: Call) -> str:
    keys = ("c", "s", "t", "p", "tp", "w", "j")
    found = dict.fromkeys(call[key] for key in keys if call[key])
    return ", ".join(found) or call["1"]


def _val(call: Call) -> str:
    text = grouped(call["1"])
    above, below = call["2"], call["3"].lstrip("-−")
    if above and below:
        text += f"+{above.lstrip('+')}−{below}"
    elif above:
        text += f"({above.strip('()')})" if above.startswith("(") else f"±{above}"
    if call["e"]:
        text = f"({text})" if "±" in text else text
        text += f"×10{superscript(call['e'])}"
    unit = call.first("u", "ul")
    per = call.first("up", "upl")
    unit += f"/{per}" if per else ""
    text = f"{call['p']}{text}{call['s']}"
    return f"{text} {unit}".strip() if unit not in ("%", "°") else text + unit


def _number(call: Call) -> str:
    return grouped(call["1"].replace(",", ""))


def _fraction(call: Call) -> str:
    args = [value for value in call.positional if value]
    if len(args) >= 3:
        return f"{args[0]} {args[1]}/{args[2]}"
    return f"1/{args[0]}" if len(args) == 1 else "/".join(args)


def _ordinal(call: Call) -> str:
    text = call["1"]
    if not text.isdecimal():
        return text
    number = int(text) % 100
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return text + ("th" if 11 <= number <= 13 else ending)


def _circa(call: Call) -> str:
    sign = "约" if call.language.partition("-")[0] in EASTERN else "c. "
    return " – ".join(f"{sign}{value}" for value in call.positional if value)


def _as_of(call: Call) -> str:
    if call["alt"]:
        return call["alt"]
    text = f"{'Since' if call['since'] else 'As of'} {_date(call)}".strip()
    return text[0].lower() + text[1:] if call["lc"] else text + call["post"]


def _parts(call: Call, first: int = 1) -> tuple[str, str, str]:
    """Year, the month's name and the day of a call's date."""
    year, month, day = (call[first + index] for index in range(3))
    if month.isdecimal() and 1 <= int(month) <= 12:
        month = MONTHS[int(month) - 1]
    return year, month, day.lstrip("0")


def _date(call: Call) -> str:
    """`2 March 1950`."""
    if call.language != "en":
        return _foreign_date(call)
    if call["df"].lower() in ("us", "mdy") or call["format"] == "mdy":
        return _american_date(call)
    year, month, day = _parts(call)
    return " ".join(filter(None, (day, month, year)))


def _american_date(call: Call) -> str:
    """`March 2, 1950`, as the templates of persons and events write it; ages are left out."""
    if call.language != "en":
        return _foreign_date(call)
    if call["df"].lower() in ("y", "yes", "dmy", "1", "true"):
        return " ".join(filter(None, reversed(_parts(call))))
    year, month, day = _parts(call)
    if not day:
        return " ".join(filter(None, (month, year)))
    return f"{month} {day}, {year}".strip(", ")


def _foreign_date(call: Call) -> str:
    """As the wiki's readers write it in East Asia, else `1950-03-02`."""
    if call.language.partition("-")[0] in EASTERN:
        return _eastern_date(call)
    return "-".join(value.zfill(2) for value in call.positional[:3] if value)


def _eastern_date(call: Call) -> str:
    """`1950年3月2日`."""
    text = "".join(
        f"{call[index + 1].lstrip('0')}{sign}"
        for index, sign in enumerate("年月日")
        if call[index + 1].isdecimal()
    )
    return text or call["1"]


def _age(call: Call) -> str:
    """Whole years between two dates; the second may be the dump's."""
    values = [int(value) if value.isdecimal() else 0 for value in call.positional]
    values += [0] * (6 - len(values))
    try:
        born = date(*values[:3])
        end = date(*values[3:6]) if values[3] else call.today
    except ValueError:
        return ""
    if end is None:
        return ""
    return str(end.year - born.year - ((end.month, end.day) < (born.month, born.day)))


def _duration(call: Call) -> str:
    hours, minutes, seconds = (call.first(index, key) for index, key in enumerate("hms", 1))
    if hours:
        return f"{hours}:{minutes.zfill(2)}:{seconds.zfill(2)}"
    return f"{minutes or '0'}:{seconds.zfill(2)}"


def _coordinates(call: Call) -> str:
    """`57°18′22″N 4°27′32″W`; nothing where they stand in the title only."""
    if call["display"] in ("title", "t"):
        return ""
    parts: list[str] = []
    pending: list[str] = []
    for value in call.positional:
        if value in _DIRECTIONS:
            parts.append(_angle(pending) + value)
            pending = []
        elif _NUMBER.fullmatch(value):
            pending.append(value)
        else:
            break
    if not parts and len(pending) == 2:
        for value, positive, negative in ((pending[0], "N", "S"), (pending[1], "E", "W")):
            below = value[0] in "-−"
            parts.append(f"{value.lstrip('-−+')}°{negative if below else positive}")
    return " ".join(parts)


def _angle(values: list[str]) -> str:
    return "".join(value + sign for value, sign in zip(values, "°′″", strict=False))


def _music(call: Call) -> str:
    return _NOTES.get(call["1"], call["1"])


def _raised(call: Call) -> str:
    return superscript(call["1"])


def _power_of_ten(call: Call) -> str:
    return f"×10{superscript(call['1'])}"


def _power(call: Call) -> str:
    return f"{call['1']}{superscript(call['2'])}"


def _short_convert(call: Call) -> str:
    call.values.setdefault("abbr", "on")
    return convert(call)


RENDERERS: dict[str, Renderer] = {
    "lang": _lang, "chinese": _chinese, "convert": convert, "short_convert": _short_convert,
    "val": _val, "number": _number, "fraction": _fraction, "raised": _raised,
    "power_of_ten": _power_of_ten, "power": _power, "ordinal": _ordinal, "circa": _circa,
    "as_of": _as_of, "date": _date, "american_date": _american_date,
    "eastern_date": _eastern_date, "age": _age, "duration": _duration,
    "coordinates": _coordinates, "music": _music,
}  # fmt: skip
