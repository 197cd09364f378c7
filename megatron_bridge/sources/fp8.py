"""Weights in 8 bits with a scale for each block, as DeepSeek-V3 is published, as they are meant.

`NAME` in float8_e4m3fn, [out, in], stands beside `NAME_scale_inv`, [ceil(out / height),
ceil(in / width)]; a weight is the product of its number and its block's scale. Blocks at the edges
are smaller. `quantization_config` of `config.json` has the sizes (DeepSeek-V3's
`inference/kernel.py`, `weight_dequant`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge.errors import InputError
from megatron_bridge.sources.stored import Computed, Readable

if TYPE_CHECKING:
    import torch

SCALE = "_scale_inv"
ENTRY = "quantization_config"
DTYPES = ("bfloat16", "float16", "float32")
"""What such weights can become."""


@dataclass(frozen=True)
class Blocks:
    """How the weights of a folder are quantised, and what they become."""

    height: int
    width: int
    to: str
    """A number format's name."""


class Scaled(Computed):
    """A weight of 8 bits times its scales: computed in float32, then rounded to `dtype`."""

    def __init__(self, weight: Readable, scale: Readable, blocks: Blocks) -> None:
        import torch

        super().__init__(getattr(torch, blocks.to), weight.shape)
        self._weight, self._scale, self._blocks = weight, scale, blocks

    @property
    def where(self) -> str:
        """The weight's file."""
        return self._weight.where

    @property
    def stored_as(self) -> str:
        """The format in words."""
        height, width = self._blocks.height, self._blocks.width
        return f"float8_e4m3fn with a scale for {height} x {width}"

    def fetch(self, start: int, stop: int) -> Callable[[int, int], torch.Tensor]:
        """Read weights and scales of rows `start` to `stop`."""
        import torch

        height, width = self._blocks.height, self._blocks.width
        first = start // height
        weights = self._weight.read(start, stop)
        scales = self._scale.read(first, -(-stop // height)).float()
        count, edge = divmod(weights.shape[1], width)

        def rows(begin: int, end: int) -> torch.Tensor:
            scale = scales[torch.arange(begin, end) // height - first]
            values = weights[begin - start : end - start].float()
            whole = values[:, : count * width].view(end - begin, count, width)
            whole.mul_(scale[:, :count, None])
            if edge:
                values[:, count * width :].mul_(scale[:, count:])
            return values

        return rows


def read_blocks(config: Mapping[str, Any], where: Path | str, to: str | None) -> Blocks | None:
    """Return how a model is quantised, from its `config.json`; None where it is not.

    Args:
        config: the contents of `config.json`.
        where: the folder, for errors.
        to: the number format that is wanted; by default the one that the config names.

    Raises:
        InputError: quantised in another way.
    """
    how = config.get(ENTRY)
    if not how:
        return None
    match how:
        case {"quant_method": "fp8", "weight_block_size": [int(height), int(width)]} if (
            min(height, width) > 0 and how.get("fmt", "e4m3") == "e4m3"
        ):
            pass
        case _:
            raise _refused(where, f"{ENTRY} {json.dumps(how)[:200]}")
    own = config.get("dtype") or config.get("torch_dtype") or DTYPES[0]
    if own not in DTYPES:
        raise InputError(
            "config.json names a number format that weights cannot become",
            where=where,
            expected=" or ".join(DTYPES),
            got=repr(own),
            fix="correct dtype in config.json",
        )
    return Blocks(height, width, to or own)


def dequantised(
    tensors: Mapping[str, Readable], blocks: Blocks | None, where: str
) -> dict[str, Readable]:
    """Return every tensor as it is meant; scales are taken up by their weights.

    Raises:
        InputError: a weight without scale, a scale without weight or of another shape, or any of
            either in a model that is not quantised.
    """
    scales = {name: t for name, t in tensors.items() if name.endswith(SCALE)}
    found: dict[str, Readable] = {}
    for name, tensor in tensors.items():
        if name in scales:
            continue
        scale = scales.pop(name + SCALE, None)
        if scale is None and not tensor.stored_as.startswith("float8"):
            found[name] = tensor
            continue
        if blocks is None:
            raise _refused(where, f"{name} in {tensor.stored_as}")
        if tensor.stored_as != "float8_e4m3fn" or scale is None:
            raise _mismatch(
                tensor.where, f"{name} in float8_e4m3fn, and {name}{SCALE}",
                f"{name} in {tensor.stored_as}" + ("" if scale else ", and no scale"),
            )  # fmt: skip
        found[name] = _scaled(name, tensor, scale, blocks)
    if scales:
        name, scale = min(scales.items())
        if blocks is None:
            raise _refused(where, f"{len(scales)} scales, such as {name}")
        raise _mismatch(scale.where, f"{name.removesuffix(SCALE)} beside {name}", "the scale alone")
    if blocks and not any(isinstance(tensor, Scaled) for tensor in found.values()):
        raise _refused(where, f"{ENTRY} in config.json, and no weights in float8_e4m3fn")
    return found


def _scaled(name: str, weight: Readable, scale: Readable, blocks: Blocks) -> Scaled:
    import torch

    if len(weight.shape) == 2:
        fitting = (-(-weight.shape[0] // blocks.height), -(-weight.shape[1] // blocks.width))
        if scale.shape == fitting and scale.dtype in (torch.float32, torch.bfloat16):
            return Scaled(weight, scale, blocks)
        expected = f"{list(fitting)} in float32 or bfloat16 for {list(weight.shape)}"
    else:
        expected = f"a matrix and its scales, {name} has shape {list(weight.shape)}"
    raise _mismatch(
        scale.where, f"{name}{SCALE}: {expected}", f"{list(scale.shape)} in {scale.stored_as}"
    )


def _mismatch(where: str, expected: str, got: str) -> InputError:
    return InputError(
        "Quantised weights and their scales do not belong together",
        where=where,
        expected=expected,
        got=got,
        fix="fetch weights and config.json of the same model again",
    )


def _refused(where: Path | str, got: str) -> InputError:
    return InputError(
        "The weights are quantised in a way that is not supported",
        where=where,
        expected="bfloat16, float16 or float32, or float8_e4m3fn in blocks (quant_method fp8 with "
        "weight_block_size)",
        got=got,
        fix="give the model in bfloat16, or dequantise it first",
    )
