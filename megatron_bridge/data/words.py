"""The datasets of a command line, in the words of Megatron-LM's `--data-path`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from pydantic import ValidationError

from megatron_bridge.config import DataSource
from megatron_bridge.errors import ConfigError


def sources(words: Sequence[str], repeats: Collection[Path]) -> Path | tuple[DataSource, ...]:
    """Read one prefix, or weights and prefixes in turn: `0.7 A 0.3 B`.

    Args:
        words: as given.
        repeats: the prefixes that may be gone through more than once.

    Raises:
        ConfigError: a weight is no number above 0, or a repeat names no dataset of the blend.
    """
    if len(words) == 1:
        return Path(words[0]).resolve()
    allowed = {path.resolve() for path in repeats}
    try:
        pairs = zip(words[::2], words[1::2], strict=True)
        found = [
            DataSource.model_validate(
                {"prefix": (prefix := Path(place).resolve()), "weight": weight, "name": place,
                 "repeats": prefix in allowed}
            )
            for weight, place in pairs
        ]  # fmt: skip
    except (ValidationError, ValueError) as error:
        raise ConfigError(
            "The datasets cannot be read",
            where="--data",
            expected="one prefix, or weights above 0 and prefixes in turn, like 0.7 A 0.3 B",
            got=" ".join(words),
            fix="write a weight before each prefix",
        ) from error
    if unknown := allowed - {source.prefix for source in found}:
        raise ConfigError(
            "What may repeat is no dataset of the blend",
            where="--repeats",
            expected=f"some of {', '.join(words[1::2])}",
            got=", ".join(map(str, sorted(unknown))),
            fix="write the prefix as in --data",
        )
    return tuple(found)
