"""A template's call: its arguments by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date

from tasks.clean.marks import DROPPED

# What a renderer or function may raise on a value that no one thought of, such as 400 digits: the
# call shows nothing then, for the page is more than one call.
ODD_CALL = (ArithmeticError, ValueError)
_KEY = re.compile(r"[\w .-]{1,40}")
_SUPERSCRIPT = str.maketrans("0123456789+-−–", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻")


@dataclass
class Call:
    """A template's call: the values of its arguments, trimmed.

    Attributes:
        values: by name; those without one have their number, from `1`.
        count: how many there are without a name.
        today: the dump's date.
        language: the wiki's code.
    """

    values: dict[str, str] = field(default_factory=dict)
    count: int = 0
    today: date | None = None
    language: str = "en"

    @classmethod
    def of(cls, body: str, today: date | None = None, language: str = "en") -> Call:
        """Read what follows a template's first bar, nested markup already shown."""
        call = cls(today=today, language=language)
        for part in body.split("|") if body else ():
            key, equals, value = part.partition("=")
            key = key.strip()
            if equals and _KEY.fullmatch(key):
                call.values[key] = value.strip()
            else:
                call.add(part)
        return call

    def add(self, value: str) -> None:
        """Take an argument without a name."""
        self.count += 1
        self.values[str(self.count)] = value.strip()

    def __getitem__(self, key: str | int) -> str:
        value = self.values.get(str(key), "")
        return value if value != DROPPED else ""

    def first(self, *keys: str | int) -> str:
        """The first of some arguments that has a value."""
        return next((self[key] for key in keys if self[key]), "")

    @property
    def positional(self) -> list[str]:
        """The arguments without a name, or whose name is a number, up to the first gap."""
        values: list[str] = []
        while str(len(values) + 1) in self.values:
            values.append(self[len(values) + 1])
        return values


Renderer = Callable[[Call], str]


def superscript(text: str) -> str:
    """Digits and signs raised: `-3` to `⁻³`."""
    return text.translate(_SUPERSCRIPT)


def counted(name: str) -> str:
    """The name under which a template is counted: of a parser function the function's."""
    name = " ".join(name.replace("_", " ").split()).lower()
    return name.partition(":")[0][:80]
