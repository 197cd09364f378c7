"""Dates for `{{#time:…}}`: PHP's format letters, and the forms of dates that articles use."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta

_MONTHS = (
    "January February March April May June July August September October November December"
).split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTH = "|".join(f"{name}|{name[:3]}" for name in _MONTHS)
_FORMS = [
    re.compile(r"(?P<y>\d{4})-(?P<m>\d{1,2})(?:-(?P<d>\d{1,2}))?(?:[T ].*)?"),
    re.compile(r"(?P<y>\d{4})(?P<m>\d{2})(?P<d>\d{2})(?:\d{6})?"),
    re.compile(rf"(?:(?P<d>\d{{1,2}})\.?\s+)?(?P<n>{_MONTH})\.?,?\s+(?P<y>\d{{4}})", re.I),
    re.compile(rf"(?P<n>{_MONTH})\.?\s+(?P<d>\d{{1,2}}),?\s+(?P<y>\d{{4}})", re.I),
    re.compile(rf"(?P<y>\d{{4}})\s+(?P<n>{_MONTH})(?:\s+(?P<d>\d{{1,2}}))?", re.I),
    re.compile(r"(?P<m>\d{1,2})/(?P<d>\d{1,2})/(?P<y>\d{4})"),
]
_OFFSET = re.compile(r"\s*([-+−]\s*\d{1,5})\s+(day|week|month|year)s?\b(?:\s+ago)?\s*$", re.I)
# In characters; no date is longer, and offsets are sought from every space.
_LONGEST_MOMENT = 100
_LETTER = re.compile(r'"[^"]*"|\\.|xn|xr|[A-Za-z]')

_LETTERS: dict[str, Callable[[date], str]] = {
    "Y": lambda day: f"{day.year}", "y": lambda day: f"{day.year % 100:02}",
    "n": lambda day: f"{day.month}", "m": lambda day: f"{day.month:02}",
    "F": lambda day: _MONTHS[day.month - 1], "M": lambda day: _MONTHS[day.month - 1][:3],
    "xg": lambda day: _MONTHS[day.month - 1],
    "j": lambda day: f"{day.day}", "d": lambda day: f"{day.day:02}",
    "l": lambda day: _DAYS[day.weekday()], "D": lambda day: _DAYS[day.weekday()][:3],
    "N": lambda day: f"{day.isoweekday()}", "w": lambda day: f"{day.isoweekday() % 7}",
    "z": lambda day: f"{day.timetuple().tm_yday - 1}",
    "W": lambda day: f"{day.isocalendar().week:02}",
    "t": lambda day: f"{(_next_month(day) - timedelta(1)).day}",
    "L": lambda day: str(int(day.year % 4 == 0 and (day.year % 100 != 0 or day.year % 400 == 0))),
    "U": lambda day: f"{(day - date(1970, 1, 1)).days * 86400}",
    "H": lambda day: "00", "G": lambda day: "0", "i": lambda day: "00", "s": lambda day: "00",
    "c": lambda day: f"{day.isoformat()}T00:00:00+00:00",
    "xn": lambda day: "", "xr": lambda day: "",
}  # fmt: skip


def formatted(pattern: str, moment: str, today: date | None) -> str:
    """A moment in the form that a pattern of PHP's letters gives; empty where it is not read.

    Args:
        pattern: such as `j F Y`.
        moment: such as `2 March 1950`; empty for the dump's date.
        today: the dump's date.
    """
    day = _date(moment, today)
    if day is None:
        return ""
    return _LETTER.sub(lambda match: _letter(match[0], day), pattern)


def _letter(letter: str, day: date) -> str:
    if letter[0] in '"\\':
        return letter.strip('"').removeprefix("\\")
    return _LETTERS[letter](day) if letter in _LETTERS else letter


def _date(moment: str, today: date | None) -> date | None:
    moment = moment.strip()
    if len(moment) > _LONGEST_MOMENT:
        return None
    offset = _OFFSET.search(moment)
    if offset:
        moment = moment[: offset.start()].strip()
    day = today if moment.lower() in ("", "now", "today") else _read(moment)
    if day is None or offset is None:
        return day
    try:
        return _moved(day, int(re.sub(r"\s", "", offset[1]).replace("−", "-")), offset[2].lower())
    except (ValueError, OverflowError):
        return None


def _read(moment: str) -> date | None:
    for form in _FORMS:
        match = form.fullmatch(moment)
        if match is None:
            continue
        parts = match.groupdict()
        name = (parts.get("n") or "")[:3].title()
        month = next((i for i, full in enumerate(_MONTHS, 1) if name and full[:3] == name), 0)
        try:
            return date(int(parts["y"]), month or int(parts["m"]), int(parts.get("d") or 1))
        except ValueError:
            return None
    return None


def _moved(day: date, count: int, unit: str) -> date:
    if unit in ("day", "week"):
        return day + timedelta(count * (7 if unit == "week" else 1))
    months = day.year * 12 + day.month - 1 + count * (12 if unit == "year" else 1)
    year, month = divmod(months, 12)
    first = date(year, month + 1, 1)
    return first.replace(day=min(day.day, (_next_month(first) - timedelta(1)).day))


def _next_month(day: date) -> date:
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)
