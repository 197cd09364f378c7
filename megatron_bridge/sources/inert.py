"""What stands for the objects of a training run's pickle: their names and values, and nothing else.

A Megatron-LM checkpoint has its arguments in an `argparse.Namespace`, and among them enums of
Megatron-LM's own. Nothing here imports what a pickle names, and nothing of it runs.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

_OWN = ("megatron.",)
"""Modules all of whose names may stand in a file; what they are is not looked at."""
_KNOWN = frozenset(
    {
        ("signal", "Signals"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),
        ("_io", "BytesIO"),
        ("torch", "Tensor"),
        ("torch", "device"),
        # NumPy's random state.
        ("_codecs", "encode"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        *(
            (f"numpy.{core}.multiarray", name)
            for core in ("core", "_core")
            for name in ("_reconstruct", "scalar")
        ),
    }
)


class Arguments(dict[str, Any]):
    """The attributes of a namespace."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.update(state)


class Named:
    """An object by the name of its class, and what the pickle would have made it from."""

    name: ClassVar[str]
    arguments: tuple[Any, ...]
    state: Any = None

    def __new__(cls, *arguments: Any) -> Named:
        """Keep what the class would have been called with."""
        made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.arguments))})"


def stand_in(module: str, name: str) -> Any:
    """Return what stands for a name of a pickle; None for one that does not belong there."""
    if (module, name) in {("argparse", "Namespace"), ("types", "SimpleNamespace")}:
        return Arguments
    if module in ("builtins", "__builtin__"):
        return {"getattr": _member, "set": set}.get(name)
    if (module, name) in _KNOWN or f"{module}.".startswith(_OWN):
        return _named(f"{module}.{name}")
    return None


@functools.cache
def _named(name: str) -> type[Named]:
    return type("Named", (Named,), {"name": name})


def _member(owner: Any, name: Any) -> Named:
    """Stand for `getattr`, by which Python 3.11 pickles a member of an enum."""
    if not (isinstance(owner, type) and issubclass(owner, Named)):
        raise TypeError("an attribute of something that is no enum")
    return owner(name)
