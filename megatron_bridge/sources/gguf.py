"""GGUF files: tensors by their Hugging Face names, dequantised where they are not numbers as such.

`config.json`, tokenizer and the rest are made from the file's facts, once; beside them lies a table
of the tensors' places, so that no other thread need read the header again. What llama.cpp's
converter (convert_hf_to_gguf.py) changes is undone: names, the order of query's and key's rows, and
experts stacked in one tensor.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge import families
from megatron_bridge.errors import InputError
from megatron_bridge.mapping import Bound
from megatron_bridge.sources import gguf_config, gguf_header, gguf_tokenizer
from megatron_bridge.sources.gguf_header import Entry, damaged
from megatron_bridge.sources.ranges import Ranges
from megatron_bridge.sources.stored import Computed, Readable, Stored, last

if TYPE_CHECKING:
    import torch

Open = Callable[[str], Ranges]
"""Opens a file by its name; parts of one model lie in one folder."""

TABLE = ".gguf.json"
_PLAIN = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8"}
"""Formats that torch has; the others are computed."""


def is_one(name: str) -> bool:
    """True for the name of a GGUF file."""
    return name.lower().endswith(".gguf")


class Quantised(Computed):
    """A tensor of blocks of numbers, computed in float32 as gguf does it."""

    def __init__(self, file: Ranges, entry: Entry) -> None:
        import torch

        super().__init__(torch.float32, entry.shape)
        self._file, self._entry = file, entry

    @property
    def where(self) -> str:
        """The file's name."""
        return self._file.name

    @property
    def stored_as(self) -> str:
        """The format's name, such as Q4_1."""
        return _format(self._entry.type)

    def at(self, index: tuple[int, ...]) -> Quantised:
        """Return the slice at `index` of the first dimensions."""
        place, shape = self._entry.offset, self._entry.shape
        for i in index:
            shape = shape[1:]
            place += i * _bytes(self._entry.type, shape)
        return Quantised(self._file, Entry(self._entry.type, shape, place))

    def fetch(self, start: int, stop: int) -> Callable[[int, int], torch.Tensor]:
        """Read the blocks of rows `start` to `stop`."""
        import numpy
        import torch
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        row = _bytes(self._entry.type, self.shape[1:])
        data = self._file.read(self._entry.offset + start * row, (stop - start) * row)
        blocks = numpy.frombuffer(data, numpy.uint8).reshape(stop - start, row)

        def rows(begin: int, end: int) -> torch.Tensor:
            # A damaged scale may be infinite; its products are what they are.
            with numpy.errstate(all="ignore"):
                kind = GGMLQuantizationType(self._entry.type)
                values = dequantize(blocks[begin - start : end - start], kind)
            return torch.from_numpy(values).view(end - begin, *self.shape[1:])

        return rows


class HalfByHalf:
    """Heads whose rows lie in pairs, for interleaved rotary, as Hugging Face has them: by halves.

    The reverse of llama.cpp's `LlamaModel.permute`.
    """

    def __init__(self, pairs: Readable, head_dim: int) -> None:
        self._pairs, self._head_dim = pairs, head_dim
        self.where, self.dtype = pairs.where, pairs.dtype
        self.shape, self.stored_as = pairs.shape, pairs.stored_as

    def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows `start` to `stop`, of whole heads that are read for them."""
        size, stop = self._head_dim, last(self.shape, start, stop)
        first, end = start // size, -(-stop // size)
        rows = self._pairs.read(first * size, end * size)
        paired = rows.view(end - first, size // 2, 2, *self.shape[1:])
        whole = paired.transpose(1, 2).reshape(rows.shape)
        return whole[start - first * size : stop - first * size]


def unpack(name: str, opened: Open, files: Path) -> str:
    """Write into a folder what a model's GGUF file has beside the weights, and their places.

    Args:
        name: the file, or the first of a model in several (`-00001-of-00003.gguf`).
        opened: opens it, and the others.
        files: an empty folder.

    Returns:
        The model's own name; empty where it has none.

    Raises:
        InputError: a damaged file, or an architecture, a number format or a tokenizer that is not
            supported.
    """
    file = opened(name)
    header = gguf_header.read(file)
    parts = {name: header.tensors} | {
        part: gguf_header.read(opened(part)).tensors for part in _others(file, name, header.facts)
    }
    table = {}
    for part, tensors in parts.items():
        whole = opened(part)
        for tensor, entry in tensors.items():
            if tensor in table:
                raise damaged(whole, f"{tensor}, which another part has too")
            _check(whole, tensor, entry)
            table[tensor] = (part, entry.type, entry.shape, entry.offset)
    kinds = {tensor: (_format(kind), shape) for tensor, (_, kind, shape, _) in table.items()}
    config = gguf_config.make(file, header.facts, kinds, _factors(opened, table))
    gguf_tokenizer.write(file, header.facts, config, files)
    for target, content in (("config.json", config), (TABLE, table)):
        text = json.dumps(content, indent=2 if target != TABLE else None, ensure_ascii=False)
        (files / target).write_text(text + "\n", encoding="utf-8")
    own = header.facts.get("general.name", "")
    return own if isinstance(own, str) else ""


def tensors(files: Path, opened: Open) -> dict[str, Readable]:
    """Return every tensor by its Hugging Face name; those without one by their own.

    Args:
        files: the folder that `unpack` has written.
        opened: opens a file of weights, once for each name.
    """
    config = families.read_config(files)
    table = json.loads((files / TABLE).read_text(encoding="utf-8"))
    parts = {part: opened(part) for part in sorted({part for part, *_ in table.values()})}
    found = {
        name: _placed(parts[part], Entry(kind, tuple(shape), offset))
        for name, (part, kind, shape, offset) in table.items()
        if name != gguf_config.ROPE_FACTORS
    }
    return _renamed(found, config)


def _renamed(
    found: Mapping[str, Stored | Quantised], config: dict[str, Any]
) -> dict[str, Readable]:
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    family = families.get(config["model_type"])
    shape = family.shape(config)
    named = gguf_config.architecture_of(config["model_type"])
    (architecture,) = (key for key, name in MODEL_ARCH_NAMES.items() if name == named)
    names = get_tensor_name_map(architecture, shape.layers)
    result: dict[str, Readable] = {}
    claimed = set()
    for bound in family.expand(shape):
        for template, hf in zip(bound.row.hf, bound.hf, strict=True):
            stem, _, kind = template.replace(".{expert}", "").rpartition(".")
            name = f"{names.get_name(stem.format(layer=bound.layer))}.{kind}"
            if name in found:
                claimed.add(name)
                result[hf] = _own(found[name], bound, shape.experts)
                if named == "llama" and re.search(r"\.attn_[qk]\.", name):
                    result[hf] = _by_halves(result[hf], shape.head_dim)
    return result | {name: found[name] for name in found.keys() - claimed}


def _by_halves(pairs: Readable, head_dim: int) -> Readable:
    if pairs.shape[0] % head_dim:
        raise InputError(
            "The heads of a GGUF file are not whole",
            where=pairs.where,
            expected=f"queries and keys of {head_dim} rows a head, as its facts say",
            got=f"a tensor of {list(pairs.shape)}",
            fix="fetch the file again",
        )
    return HalfByHalf(pairs, head_dim)


def _own(tensor: Stored | Quantised, bound: Bound, experts: int) -> Stored | Quantised:
    """Return what of a GGUF tensor belongs to a row at its expert."""
    if bound.expert is not None:
        if tensor.shape[0] != experts:
            raise InputError(
                "The experts of a GGUF file are not all there",
                where=f"{tensor.where}, {', '.join(bound.hf)}",
                expected=f"{experts} experts, as its facts say",
                got=f"a tensor of {list(tensor.shape)}",
                fix="fetch the file again",
            )
        return tensor.at((bound.expert,))
    if bound.row.sizes[0] == "one" and isinstance(tensor, Stored) and len(tensor.shape) == 1:
        return Stored(tensor.file, tensor.offset, tensor.dtype, (1, *tensor.shape))
    return tensor


def _placed(file: Ranges, entry: Entry) -> Stored | Quantised:
    import torch

    name = _format(entry.type)
    if name not in _PLAIN:
        return Quantised(file, entry)
    kinds = {"BF16": "bfloat16", "F": "float", "I": "int"}
    dtype = kinds.get(name) or kinds[name[0]] + name[1:]
    return Stored(file, entry.offset, getattr(torch, dtype), entry.shape)


def _check(file: Ranges, name: str, entry: Entry) -> None:
    """Refuse a tensor that does not lie in its file, or that cannot be computed."""
    import numpy
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        kind = GGMLQuantizationType(entry.type)
        block, size = GGML_QUANT_SIZES[kind]
        if kind.name not in _PLAIN:
            with numpy.errstate(all="ignore"):
                dequantize(numpy.zeros((1, size), numpy.uint8), kind)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise InputError(
            "A number format of the GGUF file is not supported",
            where=f"{file.name}, {name}",
            expected="one that gguf can dequantise",
            got=error,
            fix="give the model in another format, such as BF16 or Q8_0",
        ) from error
    fits = min(entry.shape) > 0 and entry.shape[-1] % block == 0
    if not fits or entry.offset + _bytes(entry.type, entry.shape) > file.size:
        raise damaged(
            file, f"{name} of {list(entry.shape)} in {kind.name} from byte {entry.offset}"
        )
    if kind.name not in _PLAIN and len(entry.shape) < 2:
        raise damaged(file, f"{name}, which is no matrix, in {kind.name}")


def _others(file: Ranges, name: str, facts: Mapping[str, Any]) -> list[str]:
    """The files that hold the rest of a model in several."""
    count, number = facts.get("split.count", 1), facts.get("split.no", 0)
    if type(count) is not int or count < 2:
        return []
    match = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", name)
    if number != 0 or match is None or int(match[2]) != count:
        raise InputError(
            "This is one of several GGUF files that hold a model",
            where=file.name,
            expected=f"the first of them, named -00001-of-{count:05d}.gguf",
            got=f"number {number}, counted from 0",
            fix="give the first file, with the others beside it",
        )
    return [f"{match[1]}-{part:05d}-of-{match[2]}.gguf" for part in range(2, count + 1)]


def _factors(opened: Open, table: Mapping[str, Any]) -> list[float]:
    """What rotary wavelengths are multiplied by; empty where they are not."""
    if gguf_config.ROPE_FACTORS not in table:
        return []
    part, kind, shape, offset = table[gguf_config.ROPE_FACTORS]
    if math.prod(shape) > gguf_config.MOST_FACTORS:
        raise damaged(opened(part), f"{gguf_config.ROPE_FACTORS} of {list(shape)}")
    values: list[float] = _placed(opened(part), Entry(kind, shape, offset)).read().tolist()
    return values


def _format(kind: int) -> str:
    from gguf import GGMLQuantizationType

    name: str = GGMLQuantizationType(kind).name
    return name


def _bytes(kind: int, shape: tuple[int, ...]) -> int:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = map(int, GGML_QUANT_SIZES[GGMLQuantizationType(kind)])
    return math.prod(shape) // block * size
