"""A checkpoint's tensors held against a source's: as they lie there, or as they once were read.

A source that costs time or money to read is read once, to write the checkpoint. What was read is
noted by digests, run by run, and the checkpoint, unpacked, must give the same digests.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from megatron_bridge.sources.stored import Readable, blocks, raw

if TYPE_CHECKING:
    import torch

EQUAL, CAST = "equal", "cast"
"""States of a tensor that is right; any other is a word for what is wrong."""
_DIFFERS, _OVERFLOWS = "differs from", "overflows in the cast to or from"

Noted = dict[str, dict[str, Any]]
"""By tensor: `dtype`, the source's number format, and `runs`, each a `Run` as a list."""


class Run(NamedTuple):
    """Rows of a tensor that were read at once."""

    start: int
    rows: int
    digest: str
    """Of their bytes in the narrower number format of source and checkpoint."""
    overflows: bool
    """A finite value is infinite in that format."""


class Compared(NamedTuple):
    """What a comparison found of one tensor."""

    digest: str
    state: str
    not_finite: int
    """Values that are NaN or infinite."""


class Notes:
    """What one thread has read of a source."""

    def __init__(self) -> None:
        self._found: Noted = {}

    def add(self, name: str, start: int, values: torch.Tensor, dtype: torch.dtype) -> None:
        """Note rows of a tensor that become `dtype` in the checkpoint."""
        kept = values.to(narrower(values.dtype, dtype))
        overflows = kept.dtype != values.dtype and _overflows(values, kept)
        digest = hashlib.sha256(_bits(kept)).hexdigest()
        entry = self._found.setdefault(name, {"dtype": _name(values.dtype), "runs": []})
        entry["runs"].append(Run(start, len(values) if values.ndim else 1, digest, overflows))

    def take(self) -> Noted:
        """Return what was noted since the last call."""
        found, self._found = self._found, {}
        return found


def merged(parts: Iterable[Noted]) -> Noted:
    """Put together what several pieces of work have noted."""
    found: Noted = {}
    for part in parts:
        for name, entry in part.items():
            found.setdefault(name, {"dtype": entry["dtype"], "runs": []})["runs"] += entry["runs"]
    return found


class Direct:
    """A tensor of the checkpoint against the source's, which is read again."""

    def __init__(self, stored: Readable) -> None:
        self._stored = stored
        self._digest, self._state, self._not_finite = hashlib.sha256(), EQUAL, 0

    def take(self, row: int, values: torch.Tensor) -> None:
        """Compare rows from `row` on; blocks come in the order of the rows."""
        part = self._stored.read(row, row + len(values)) if values.ndim else self._stored.read()
        self._digest.update(_bits(part))
        self._not_finite += _not_finite(part)
        if self._state in (EQUAL, CAST):
            self._state = _state(part, values)

    def result(self) -> Compared:
        """Return the digest of the source's tensor, and the state of the checkpoint's."""
        return Compared(self._digest.hexdigest(), self._state, self._not_finite)


class Again:
    """A tensor of the checkpoint against the digests of what was read of the source's."""

    def __init__(self, entry: Mapping[str, Any] | None) -> None:
        import torch

        entry = entry or {"dtype": "float32", "runs": []}
        self._dtype: torch.dtype = getattr(torch, entry["dtype"])
        self._runs = deque(sorted(Run(*run) for run in entry["runs"]))
        self._row = self._in_run = 0
        self._whole, self._digest = hashlib.sha256(), hashlib.sha256()
        self._state, self._not_finite = EQUAL, 0

    def take(self, row: int, values: torch.Tensor) -> None:
        """Compare rows from `row` on; blocks come in the order of the rows."""
        self._not_finite += _not_finite(values)
        if values.dtype != self._dtype and self._state == EQUAL:
            self._state = CAST
        kept = values.to(narrower(self._dtype, values.dtype)).contiguous()
        self._whole.update(raw(kept))
        rows = kept if kept.ndim else kept.unsqueeze(0)
        done = 0
        while done < len(rows):
            run = self._runs[0] if self._runs else None
            # Runs must tile the tensor: rows that were never read are equal to nothing.
            if run is None or row + done != run.start + self._in_run:
                self._state = _DIFFERS
                return
            count = min(run.rows - self._in_run, len(rows) - done)
            self._digest.update(raw(rows[done : done + count]))
            done, self._in_run = done + count, self._in_run + count
            if self._in_run == run.rows:
                self._end(run)

    def result(self) -> Compared:
        """Return the digest of the tensor in the narrower format, and its state."""
        state = _DIFFERS if self._runs else self._state
        return Compared(self._whole.hexdigest(), state, self._not_finite)

    def _end(self, run: Run) -> None:
        if self._state in (EQUAL, CAST):
            if self._digest.hexdigest() != run.digest:
                self._state = _DIFFERS
            elif run.overflows:
                self._state = _OVERFLOWS
        self._runs.popleft()
        self._in_run, self._digest = 0, hashlib.sha256()


def narrower(source: torch.dtype, checkpoint: torch.dtype) -> torch.dtype:
    """Return the format in which both hold the same values; of two as narrow, the checkpoint's."""
    return source if source.itemsize < checkpoint.itemsize else checkpoint


def digest(stored: Readable, dtype: torch.dtype) -> str:
    """Return the digest of a tensor with rows, cast to a number format; read in blocks."""
    found = hashlib.sha256()
    for start, stop in blocks(stored):
        found.update(_bits(stored.read(start, stop).to(dtype)))
    return found.hexdigest()


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True for two tensors of one number format that are the same bit by bit."""
    import torch

    # Python compares memory byte by byte; whole numbers of the same width are compared at once.
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.dtype.itemsize]
    return torch.equal(one.view(whole), other.view(whole))


def _state(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.dtype == other.dtype:
        # Bits, not values: a NaN is equal to itself, and 0.0 is not -0.0.
        return EQUAL if same_bits(one, other) else _DIFFERS
    # Of float16 and bfloat16 neither is the narrower: either may have been made from the other.
    narrow = min(one.dtype.itemsize, other.dtype.itemsize)
    for target, source in ((one, other), (other, one)):
        if target.dtype.itemsize == narrow and same_bits(source.to(target.dtype), target):
            return _OVERFLOWS if _overflows(source, target) else CAST
    return _DIFFERS


def _not_finite(values: torch.Tensor) -> int:
    import torch

    if not values.numel():
        return 0
    least, largest = torch.aminmax(values)  # a NaN anywhere is both; far faster than counting
    if bool(least.isfinite() & largest.isfinite()):
        return 0
    return int((~values.isfinite()).sum())


def _overflows(source: torch.Tensor, target: torch.Tensor) -> bool:
    return bool((source.isfinite() & ~target.isfinite()).any())


def _bits(tensor: torch.Tensor) -> memoryview:
    return raw(tensor.contiguous())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
