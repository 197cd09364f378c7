"""What a conversion keeps and tells of a source that lies elsewhere and is read once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron_bridge.comparison import merged
from megatron_bridge.hf import Weights
from megatron_bridge.journal import Journal
from megatron_bridge.sources.transport import changed


def keep(written: Sequence[Mapping[str, Any]], journal: Journal) -> Path | None:
    """Put what was noted while writing into one file, for all who compare.

    Args:
        written: results of `transfer.write_checkpoint`.
        journal: where the file goes.

    Returns:
        The file; None where nothing was noted, because the source is on this disk.
    """
    parts = [group["noted"] for group in written if "noted" in group]
    if not parts:
        return None
    journal.note("noted", merged(parts))
    return journal.folder / "noted.json"


def told(
    weights: Weights,
    state: object,
    written: Iterable[Mapping[str, Any]],
    before: int,
) -> dict[str, dict[str, Any]]:
    """Return the certificate's section on a source elsewhere; none for one on this disk.

    Args:
        weights: the source, opened anew after all of it was written.
        state: what `weights.state()` was at the beginning.
        written: results of `transfer.write_checkpoint`, of earlier runs of this command too.
        before: bytes fetched before that.

    Raises:
        InputError: a file has changed.
    """
    source = weights.source
    if source.address is None:
        return {}
    if weights.state() != state:
        raise changed(source.weights)
    fetched = before + weights.fetched + sum(group["fetched"] for group in written)
    return {
        "source": {
            "url": source.weights,
            "read": "once, by ranges; the checkpoint was compared with digests of what was read",
            "bytes_fetched": fetched,
            # Of a GGUF file the header was fetched before: it is a part of the weights.
            "bytes": weights.bytes + (0 if source.is_gguf else source.fetched),
        }
    }
