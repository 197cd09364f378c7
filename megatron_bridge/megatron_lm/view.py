"""A checkpoint's tensors under the keys that a family's rows ask for.

Its keys depend on how a run was set up: all layers under one key or each under its own, experts
likewise, gate and up apart, norms as parts of the linear layer behind them or by themselves.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_bridge.errors import InputError
from megatron_bridge.layouts import ModelShape
from megatron_bridge.mapping import Bound
from megatron_bridge.options import ATTENTION_NORM, LATENT_NORMS, MLP_NORM
from megatron_bridge.tensors import Shape, Tensors
from megatron_bridge.torch_dist import is_model_key

if TYPE_CHECKING:
    import torch

_WRAPPED = ("module.", "model.")
_ALIASES = tuple(
    pair
    for names in (ATTENTION_NORM, MLP_NORM, LATENT_NORMS)
    for one, other in names.items()
    for pair in ((one, other), (other, one))
)
_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")
_EXPERT = re.compile(r"\.experts\.experts\.(\d+)\.")
_HALVES = ("", "_w", "_v")
"""How the name of a whole tensor ends; gate's and up's of a feed-forward layer that lie apart."""

_Cell = tuple[str, int | None, int | None]
"""A tensor's name without numbers, its layer and its expert."""


@dataclass(frozen=True)
class _Part:
    """Where a cell's rows lie, or half of them."""

    key: str
    index: tuple[int, ...]
    half: int
    """A place in `_HALVES`."""
    shape: tuple[int, ...]
    dtype: torch.dtype


class View:
    """The tensors that rows ask for; what no row asks for stays visible under its own name."""

    def __init__(self, raw: Tensors, bounds: Sequence[Bound], shape: ModelShape) -> None:
        self._raw = raw
        self._found: dict[tuple[str, tuple[int, ...]], list[_Part]] = {}
        cells: dict[_Cell, list[_Part]] = {}
        for key, shaped in raw.shapes().items():
            if is_model_key(key):
                for cell, part in _cells(key, shaped):
                    cells.setdefault(cell, []).append(part)
        for bound in bounds:
            if (name := _find(bound, cells)) is not None:
                parts = _fitting(cells.pop(name), raw.folder)
                self._found[bound.slot.key, bound.slot.index] = parts
        self._shapes = self._claimed(bounds, shape)
        for part in itertools.chain.from_iterable(cells.values()):
            unclaimed = part.key + "".join(f"[{i}]" for i in part.index)
            self._shapes[unclaimed] = (part.shape, part.dtype)
        others = {key: value for key, value in raw.shapes().items() if not is_model_key(key)}
        self._shapes |= others

    @property
    def folder(self) -> Path:
        """The checkpoint's folder."""
        return self._raw.folder

    def shapes(self) -> dict[str, Shape]:
        """Return global shape and dtype of every tensor by key."""
        return self._shapes

    def read(
        self, key: str, index: tuple[int, ...] = (), start: int = 0, stop: int | None = None
    ) -> torch.Tensor:
        """Return the slice of `key` at `index`, or rows of it."""
        import torch

        parts = self._found[key, index]
        if len(parts) == 1:
            return self._raw.read(parts[0].key, parts[0].index, start, stop)
        rows, begin = [], 0
        for part in parts:
            end = begin + part.shape[0]
            low, high = max(start, begin), min(end if stop is None else stop, end)
            if low < high:
                rows.append(self._raw.read(part.key, part.index, low - begin, high - begin))
            begin = end
        return torch.cat(rows)

    def close(self) -> None:
        """Close the files."""
        self._raw.close()

    def _claimed(self, bounds: Sequence[Bound], shape: ModelShape) -> dict[str, Shape]:
        """Global shapes of what was found; layers and experts that do not fit are refused."""
        found: dict[str, Shape] = {}
        lost: dict[str, str] = {}
        for bound in bounds:
            parts = self._found.get((bound.slot.key, bound.slot.index))
            if parts is None:
                lost.setdefault(bound.slot.key, str(bound.slot))
                continue
            tail = parts[0].shape
            if tail:
                tail = (sum(part.shape[0] for part in parts), *tail[1:])
            one = ((*bound.counts(shape), *tail), parts[0].dtype)
            if found.setdefault(bound.slot.key, one) != one:
                raise _apart(self.folder, str(bound.slot), found[bound.slot.key], one)
        if partly := found.keys() & lost.keys():
            raise _incomplete(self.folder, lost[min(partly)])
        return found


def seen(raw: Tensors, bounds: Sequence[Bound], shape: ModelShape) -> Tensors:
    """Return a checkpoint's tensors under the keys of the rows: `raw` itself where it has them."""
    known = raw.shapes()
    return raw if all(bound.slot.key in known for bound in bounds) else View(raw, bounds, shape)


def _cells(key: str, shaped: Shape) -> Iterator[tuple[_Cell, _Part]]:
    """Yield every layer and expert of one tensor of the checkpoint."""
    stem = key
    while stem.startswith(_WRAPPED):
        stem = stem.partition(".")[2]
    layer, expert = _LAYER.search(stem), _EXPERT.search(stem)
    if layer:
        stem = stem.replace(layer[0], "decoder.layers.", 1)
    if expert:
        stem = stem.replace(expert[0], ".experts.experts.", 1)
    half = next((n for n, end in enumerate(_HALVES) if end and stem.endswith(end)), 0)
    stem = stem.removesuffix(_HALVES[half])
    axes: list[list[int | None]] = []
    stacked = [layer is None and stem.startswith("decoder.layers.")]
    stacked.append(expert is None and ".experts.experts." in stem)
    size, dtype = shaped
    depth = iter(size)
    for found, has in zip((layer, expert), stacked, strict=True):
        axes.append(list(range(next(depth, 0))) if has else [int(found[1]) if found else None])
    tail = size[sum(stacked) :]
    for at, of in itertools.product(*axes):
        index = tuple(n for n, has in zip((at, of), stacked, strict=True) if has and n is not None)
        yield (stem, at, of), _Part(key, index, half, tail, dtype)


def _find(bound: Bound, cells: dict[_Cell, list[_Part]]) -> _Cell | None:
    stem = bound.row.mcore.replace(".{layer}", "").replace(".{expert}", "")
    names = [stem, *(stem.replace(one, other) for one, other in _ALIASES if one in stem)]
    choices = ((name, bound.layer, bound.expert) for name in names)
    return next((cell for cell in choices if cell in cells), None)


def _fitting(parts: list[_Part], folder: Path) -> list[_Part]:
    """A whole tensor, or its gate and its up, in this order."""
    parts = sorted(parts, key=lambda part: part.half)
    alike = len({(part.shape, part.dtype) for part in parts}) == 1
    if [part.half for part in parts] in ([0], [1, 2]) and alike:
        return parts
    got = (f"{part.key} {list(part.shape)} in {part.dtype}" for part in parts)
    raise InputError(
        "A tensor of the checkpoint is there twice, or its halves do not fit together",
        where=folder,
        expected="one tensor, or its gate (_w) and its up (_v) of one shape and number format",
        got="; ".join(got),
        fix="give the checkpoint as Megatron-LM wrote it",
    )


def _apart(folder: Path, slot: str, first: Shape, other: Shape) -> InputError:
    return InputError(
        "The layers or experts of a tensor do not fit together",
        where=f"{folder}, {slot}",
        expected=f"{list(first[0])} in {first[1]}, as of those before",
        got=f"{list(other[0])} in {other[1]}",
        fix="give the checkpoint as Megatron-LM wrote it",
    )


def _incomplete(folder: Path, slot: str) -> InputError:
    return InputError(
        "The checkpoint lacks a layer or an expert of a tensor",
        where=folder,
        expected="every layer that the run's arguments count",
        got=f"no {slot}",
        fix="give a whole checkpoint",
    )
