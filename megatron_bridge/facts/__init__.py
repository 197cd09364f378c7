"""What `config.json` says of a model, in plain facts: the second reading of a conversion's input.

`families/` turns `config.json` into Megatron's fields, and a model is built from them;
`worker/architecture.py` reads the same facts off the modules of that model. Here they come from
Hugging Face's own entries, under the names that each family has for them. Nothing of `families/` is
used, so that a mistake there is not compared with itself. Light: standard library only.

A fact of every layer is one value where all layers agree, else a list. What a `model_type` implies
without an entry is written as Hugging Face's modelling code has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron_bridge.facts import parts, positions, routing, sizes

ABSENT = object()
"""What no fact equals."""

Facts = dict[str, Any]
"""Values by the fact's name: numbers, words, lists."""


def expected(config: Mapping[str, Any]) -> Facts:
    """Return the facts that `config.json` states."""
    found = {
        **sizes.read(config),
        **parts.read(config),
        **positions.read(config),
        **routing.read(config),
    }
    return {name: value for name, value in found.items() if value is not sizes.UNSAID}
