"""How much of each source a run takes: the table before training, and what it refuses. Light."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megatron_bridge.errors import ConfigError

Row = dict[str, Any]


@dataclass(frozen=True)
class Stock:
    """What there is of a source, and its share.

    Attributes:
        name: what people know it by.
        documents: in its training split.
        tokens: in its training split.
        weight: relative to the other sources', more than 0.
        repeats: whether it may be gone through more than once.
    """

    name: str
    documents: int
    tokens: int
    weight: float
    repeats: bool


def at_most(weights: Sequence[float], samples: int) -> list[int]:
    """The most samples that Megatron's blending can take from each source.

    It always takes the source that is furthest behind its share, so none gets ahead of its share
    by a whole sample; the exact numbers need a walk over all samples (`indices.draw`).
    """
    total = sum(weights)
    return [min(samples, math.floor(w / total * (samples - 1)) + 1) for w in weights]


def table(stocks: Sequence[Stock], counts: Sequence[int], sequence_length: int) -> list[Row]:
    """One row a source: what is there, and what is taken of it.

    Args:
        stocks: the sources.
        counts: samples of each.
        sequence_length: tokens a sample.

    Returns:
        Rows of source, documents, tokens, weight (of 1), samples, epochs (tokens taken by tokens
        there) and repeated_tokens (taken beyond the first epoch).

    Raises:
        ConfigError: more is asked of a source than it holds, and it may not be repeated.
    """
    total = sum(stock.weight for stock in stocks)
    rows = []
    for stock, count in zip(stocks, counts, strict=True):
        taken = count * sequence_length
        # A sample's last label is the next one's first token, hence one more.
        if taken + 1 > stock.tokens and count and not stock.repeats:
            raise _too_much(stock, count, sum(counts), sequence_length)
        rows.append(
            {
                "source": stock.name,
                "documents": stock.documents,
                "tokens": stock.tokens,
                "weight": round(stock.weight / total, 6),
                "samples": count,
                "epochs": round(taken / stock.tokens, 4),
                "repeated_tokens": max(0, taken - stock.tokens),
            }
        )
    return rows


def lines(rows: Sequence[Row]) -> list[str]:
    """The table as plain text."""
    names = list(rows[0])
    cells = [
        names,
        *([f"{v:,}" if isinstance(v, int) else str(v) for v in r.values()] for r in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        )
        for row in cells
    ]


def _too_much(stock: Stock, count: int, samples: int, sequence_length: int) -> ConfigError:
    once = max(0, stock.tokens - 1) // sequence_length
    epochs = count * sequence_length / stock.tokens
    return ConfigError(
        "A weight asks for more of a source than is there",
        where=f"the blend, {stock.name}",
        expected=f"at most the {once:,} samples of {sequence_length:,} tokens that its "
        f"{stock.tokens:,} tokens make, which is a share of {once / samples:.4g}",
        got=f"{count:,} of {samples:,} samples, {epochs:.4g} epochs",
        fix="lower its weight or the steps, or allow it to repeat by name (repeats: true in the "
        "recipe, --repeats on the command line)",
    )
