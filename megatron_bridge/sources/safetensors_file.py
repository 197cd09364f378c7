"""The header of a safetensors file: names, number formats, shapes and places.

Format: 8 bytes little-endian header length, a JSON header, then the tensors' bytes, row-major
(https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
import math
from typing import Any

from megatron_bridge.errors import InputError
from megatron_bridge.sources.ranges import Ranges
from megatron_bridge.sources.stored import Stored

CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""torch's names of number formats, and the format's own."""

LONGEST_HEADER = 100_000_000
"""In bytes; the format's own limit."""


def tensors(file: Ranges) -> dict[str, Stored]:
    """Return every tensor of a file by name.

    Raises:
        InputError: the header is damaged, or a tensor lies outside the file.
    """
    import torch

    kinds = {code: getattr(torch, name) for name, code in CODES.items()}
    header, start = _header(file)
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = kinds[entry["dtype"]], tuple(map(int, entry["shape"]))
            first, last = map(int, entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(file, f"entry {name}: {error!r}") from error
        fits = 0 <= first <= last <= file.size - start and min(shape, default=0) >= 0
        if not fits or last - first != math.prod(shape) * dtype.itemsize:
            raise _damaged(file, f"entry {name} of bytes {first} to {last}")
        found[name] = Stored(file, start + first, dtype, shape)
    return found


def _header(file: Ranges) -> tuple[dict[str, Any], int]:
    if file.size < 8:
        raise _damaged(file, f"{file.size} bytes")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > min(LONGEST_HEADER, file.size - 8):
        raise _damaged(file, f"a header of {length} bytes in {file.size}")
    try:
        header = json.loads(file.read(8, length))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _damaged(file, error) from error
    if not isinstance(header, dict):
        raise _damaged(file, "a header that is no table")
    return header, 8 + length


def _damaged(file: Ranges, got: object) -> InputError:
    return InputError(
        "A weight file cannot be read",
        where=file.name,
        expected="a whole safetensors file",
        got=got,
        fix="fetch the file again",
    )
