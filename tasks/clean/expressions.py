"""The arithmetic of `{{#expr:…}}`.

Source: mediawiki.org, `Help:Extension:ParserFunctions`, "expr".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

_LONGEST = 2_000
_TOKEN = re.compile(r"\s*(\d+\.?\d*|\.\d+|<>|<=|>=|!=|[-+*/^=<>(),−×÷]|[a-zA-Zπ]+)")


class ExpressionError(ValueError):
    """The expression has no value."""


_BINARY: dict[str, tuple[int, Callable[[float, float], float]]] = {
    "e": (9, lambda a, b: a * 10.0**b),
    "^": (8, lambda a, b: math.pow(a, b)),
    "*": (7, lambda a, b: a * b), "×": (7, lambda a, b: a * b),
    "/": (7, lambda a, b: a / b), "div": (7, lambda a, b: a / b), "÷": (7, lambda a, b: a / b),
    "mod": (7, lambda a, b: math.fmod(int(a), int(b))),
    "fmod": (7, lambda a, b: math.fmod(a, b)),
    "+": (6, lambda a, b: a + b), "-": (6, lambda a, b: a - b), "−": (6, lambda a, b: a - b),
    "round": (5, lambda a, b: _rounded(a, b)),
    "=": (4, lambda a, b: float(a == b)), "!=": (4, lambda a, b: float(a != b)),
    "<>": (4, lambda a, b: float(a != b)), "<": (4, lambda a, b: float(a < b)),
    ">": (4, lambda a, b: float(a > b)), "<=": (4, lambda a, b: float(a <= b)),
    ">=": (4, lambda a, b: float(a >= b)),
    "and": (3, lambda a, b: float(bool(a) and bool(b))),
    "or": (2, lambda a, b: float(bool(a) or bool(b))),
}  # fmt: skip
_UNARY: dict[str, Callable[[float], float]] = {
    "-": lambda a: -a, "−": lambda a: -a, "+": lambda a: a, "not": lambda a: float(not a),
    "abs": abs, "ceil": math.ceil, "floor": math.floor, "trunc": math.trunc, "sqrt": math.sqrt,
    "exp": math.exp, "ln": math.log, "sin": math.sin, "cos": math.cos, "tan": math.tan,
    "asin": math.asin, "acos": math.acos, "atan": math.atan,
}  # fmt: skip
_CONSTANTS = {"pi": math.pi, "π": math.pi, "e": math.e}
_LOOSEST = 0


def evaluate(text: str) -> float:
    """The value of an expression.

    Raises:
        ExpressionError: it has none.
    """
    if len(text) > _LONGEST:
        raise ExpressionError("Expression error: too long")
    try:
        return _evaluated(_tokens(text))
    except ExpressionError:
        raise
    except (ArithmeticError, ValueError, IndexError) as error:
        raise ExpressionError(f"Expression error: {error}") from error


def shown_number(value: float) -> str:
    """A number as MediaWiki shows it: 14 significant digits, no needless zeros."""
    if not math.isfinite(value):
        return "NAN" if math.isnan(value) else "INF"
    text = f"{value:.14g}".replace("e+", "E+").replace("e-", "E-")
    return "0" if text == "-0" else text


def _tokens(text: str) -> list[str]:
    tokens, pos = [], 0
    text = text.strip()
    while pos < len(text):
        match = _TOKEN.match(text, pos)
        if match is None:
            raise ExpressionError("Expression error: unrecognised character")
        tokens.append(match[1].lower())
        pos = match.end()
    return tokens


def _evaluated(tokens: list[str]) -> float:
    """Operator precedence with two stacks; depth costs no call."""
    values: list[float] = []
    operators: list[str] = []
    expects_value = True
    for token in tokens:
        if expects_value:
            expects_value = _begin(token, values, operators)
        elif token == ")":
            _reduce(values, operators, _LOOSEST)
            if not operators:
                raise ExpressionError("Expression error: unexpected closing bracket")
            operators.pop()
        elif token in _BINARY:
            _reduce(values, operators, _BINARY[token][0])
            operators.append(token)
            expects_value = True
        else:
            raise ExpressionError(f"Expression error: unexpected {token}")
    _reduce(values, operators, _LOOSEST)
    if operators or len(values) != 1:
        raise ExpressionError("Expression error: not complete")
    return values[0]


def _begin(token: str, values: list[float], operators: list[str]) -> bool:
    """Take a token that stands where a value is expected; True where one still is."""
    if token[0].isdecimal() or token[0] == ".":
        values.append(float(token))
    elif token in _CONSTANTS:
        values.append(_CONSTANTS[token])
    elif token == "(" or token in _UNARY:
        # A sign is told from its operator by a mark.
        operators.append(token if token == "(" else f"{token}1")
        return True
    else:
        raise ExpressionError(f"Expression error: unexpected {token}")
    return False


def _reduce(values: list[float], operators: list[str], rank: int) -> None:
    """Apply the operators on the stack that bind at least as tightly, up to a bracket."""
    while operators and operators[-1] != "(":
        name = operators[-1]
        unary = name.endswith("1")
        if not unary and _BINARY[name][0] < rank:
            return
        operators.pop()
        right = values.pop()
        if unary:
            values.append(float(_UNARY[name[:-1]](right)))
        else:
            values.append(float(_BINARY[name][1](values.pop(), right)))


def _rounded(value: float, places: float) -> float:
    factor = 10.0 ** int(max(-30, min(places, 30)))
    return math.copysign(math.floor(abs(value) * factor + 0.5) / factor, value)
