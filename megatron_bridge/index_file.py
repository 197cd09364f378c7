"""`.metadata`, the index of a `torch_dist` checkpoint: what it holds, and where each block lies.

The file is a pickle of PyTorch's own classes (`torch.distributed.checkpoint.metadata`). PyTorch's
reader opens it with a bare `pickle.load`, which runs whatever a stranger put there. Here no class
is imported: names on a short list stand for plain values, and any other name is refused. Written,
it is the same pickle, an instruction at a time.
"""

from __future__ import annotations

import itertools
import pickle
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from pydantic import BaseModel, ConfigDict

from megatron_bridge.errors import InputError, PipelineError

FILE = ".metadata"

Shape = tuple[int, ...]


class Placed(BaseModel):
    """One block of a tensor: which, and where it lies."""

    model_config = ConfigDict(frozen=True)

    key: str
    offset: Shape
    size: Shape
    global_size: Shape
    dtype: str
    file: str
    start: int
    length: int


@dataclass
class Entry:
    """A tensor: global shape, torch's name of its number format, offset and size of each block."""

    size: Shape
    dtype: str
    blocks: list[tuple[Shape, Shape]]


@dataclass(frozen=True)
class Place:
    """A range of a file, in bytes."""

    file: str
    start: int
    length: int
    transforms: Any = None
    """How the range is encoded; None where it is not."""


@dataclass
class Index:
    """What a checkpoint holds."""

    tensors: dict[str, Entry] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    """Keys of what is no tensor."""
    places: dict[tuple[str, Shape | None], Place] = field(default_factory=dict)
    """By key and offset; what is no tensor has no offset."""


def read(folder: Path) -> Index:
    """Return the index of a checkpoint.

    Raises:
        InputError: no index, a damaged one, or a pickle that names anything else.
    """
    path = Path(folder) / FILE
    try:
        with path.open("rb") as file:
            return _index(_Unpickler(file, path).load())
    except FileNotFoundError as error:
        raise InputError(
            "The folder holds no torch_dist checkpoint",
            where=folder,
            expected=f"{FILE} beside *.distcp",
            got=f"no {FILE}",
        ) from error
    except PipelineError:
        raise
    # A damaged pickle can fail in any way that reading one can.
    except Exception as error:
        raise InputError("The checkpoint's index is damaged", where=path, got=error) from error


def write(folder: Path, placed: Iterable[Placed], others: Mapping[str, Place]) -> None:
    """Write the index of blocks, and of further entries that are no tensors."""
    of_key: dict[str, list[Placed]] = {}
    storage: dict[_Code, _Code] = {}
    for block in placed:
        of_key.setdefault(block.key, []).append(block)
        place = Place(block.file, block.start, block.length)
        storage[_key(block.key, block.offset)] = _place(place)
    storage |= {_key(key, None): _place(place) for key, place in others.items()}
    nothing = {key: _new(_DCP, "BytesStorageMetadata", {}) for key in others}
    # torch's writer puts its path and a random id here; without them equal models are equal files.
    about: dict[str, Any] = {"checkpoint_id": None, "save_id": None, "load_id": None, "modules": []}
    whole = {
        "state_dict_metadata": {**{k: _tensor(b) for k, b in of_key.items()}, **nothing},
        "planner_data": None,
        "storage_data": storage,
        "storage_meta": _new(_DCP, "StorageMeta", about),
        "version": None,
    }
    code = b"\x80\x02" + _value(_new(_DCP, "Metadata", whole)) + b"."
    (folder / FILE).write_bytes(code)


_DCP = "torch.distributed.checkpoint.metadata"
_FILESYSTEM = "torch.distributed.checkpoint.filesystem"
_DTYPES = {
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "int16", "int32", "int64", "uint8", "bool"),
}
_PARTS = {
    (_FILESYSTEM, "_StorageInfo"),
    *(
        (_DCP, name)
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    # Megatron's writer keeps the ranks' save plans in the index.
    *(
        ("torch.distributed.checkpoint.planner", name)
        for name in ("SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")
    ),
}
_PLAIN: dict[tuple[str, str], Any] = {
    ("torch", "Size"): tuple,
    ("torch.serialization", "_get_layout"): str,
    ("collections", "OrderedDict"): dict,
    ("pathlib", "PosixPath"): PurePosixPath,
    ("pathlib._local", "PosixPath"): PurePosixPath,  # Python 3.13
}


class _Part:
    """Stands for an object of one of PyTorch's classes: its class's name and its state."""

    kind = ""

    def __init__(self, *given: Any) -> None:
        self.state: Any = given

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __getitem__(self, name: str) -> Any:
        return self.state[name]


class _Unpickler(pickle.Unpickler):
    """Builds plain values and `_Part`s."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        super().__init__(file)
        self._path = path
        self._known = {**_PLAIN, **{("torch", name): name for name in _DTYPES}}
        self._known |= {key: type(key[1], (_Part,), {"kind": key[1]}) for key in _PARTS}

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for an allowed name; anything else is refused before it runs."""
        if (module, name) not in self._known:
            raise InputError(
                "The checkpoint's index names something that does not belong there",
                where=self._path,
                expected="torch's own index classes",
                got=f"{module}.{name}",
                fix="do not open this file; it may have been made to run code",
            )
        return self._known[module, name]


def _index(whole: _Part) -> Index:
    found = Index()
    for key, entry in whole["state_dict_metadata"].items():
        if entry.kind != "TensorStorageMetadata":
            found.others.add(key)
            continue
        size = _shape(entry["size"])
        blocks = [(_shape(part["offsets"]), _shape(part["sizes"])) for part in entry["chunks"]]
        _check_tiling(key, size, blocks)
        dtype = entry["properties"].state[0]
        if dtype not in _DTYPES:
            raise ValueError(f"{key} has the number format {dtype!r}")
        found.tensors[key] = Entry(size, dtype, blocks)
    for key, info in whole["storage_data"].items():
        given = key.state.get("offset")  # a class's default is not in its state
        at = None if given is None else _shape(given)
        place = Place(
            str(info["relative_path"]),
            int(info["offset"]),
            int(info["length"]),
            info.state.get("transform_descriptors"),
        )
        found.places[key["fqn"], at] = place
    return found


def _check_tiling(key: str, size: Shape, blocks: list[tuple[Shape, Shape]]) -> None:
    """Refuse blocks that lie outside a tensor or over one another: what is read must be whole."""
    inside = all(
        len(offset) == len(part) == len(size)
        and all(o + n <= whole for o, n, whole in zip(offset, part, size, strict=True))
        for offset, part in blocks
    )
    if not inside:
        raise ValueError(f"a block of {key} outside of {list(size)}")
    _cut(key, [block for block in blocks if 0 not in block[1]], 0)


def _cut(key: str, blocks: list[tuple[Shape, Shape]], axis: int) -> None:
    """Cut a tensor between blocks, one axis after the other; compare only what lies together."""
    if len(blocks) < 2:
        return
    if axis == len(blocks[0][0]):
        if any(_overlap(one, other) for one, other in itertools.combinations(blocks, 2)):
            raise ValueError(f"blocks of {key} that overlap")
        return
    blocks = sorted(blocks, key=lambda block: block[0][axis])
    piece, end = [blocks[0]], blocks[0][0][axis] + blocks[0][1][axis]
    pieces = [piece]
    for block in blocks[1:]:
        if block[0][axis] >= end:
            piece = []
            pieces.append(piece)
        piece.append(block)
        end = max(end, block[0][axis] + block[1][axis])
    for piece in pieces:
        _cut(key, piece, axis + 1)


def _overlap(one: tuple[Shape, Shape], other: tuple[Shape, Shape]) -> bool:
    sides = zip(*one, *other, strict=True)
    return all(a < b + m and b < a + n for a, n, b, m in sides)


def _shape(numbers: Iterable[int]) -> Shape:
    shape = tuple(map(int, numbers))
    if min(shape, default=0) < 0:
        raise ValueError(f"a size of {shape}")
    return shape


class _Code(bytes):
    """Instructions of a pickle that leave one value on its stack."""


def _name(module: str, name: str) -> _Code:
    return _Code(f"c{module}\n{name}\n".encode())


def _call(function: _Code, *given: Any) -> _Code:
    return _Code(function + _value(given) + b"R")


def _new(module: str, name: str, state: Any) -> _Code:
    return _Code(_name(module, name) + b")\x81" + _value(state) + b"b")


def _size(shape: Shape) -> _Code:
    return _call(_name("torch", "Size"), shape)


def _key(key: str, offset: Shape | None) -> _Code:
    at = None if offset is None else _size(offset)
    return _new(_DCP, "MetadataIndex", {"fqn": key, "offset": at, "index": None})


def _place(place: Place) -> _Code:
    where = {"relative_path": place.file, "offset": place.start, "length": place.length}
    return _new(_FILESYSTEM, "_StorageInfo", where | {"transform_descriptors": None})


def _tensor(blocks: list[Placed]) -> _Code:
    layout = _call(_name("torch.serialization", "_get_layout"), "torch.strided")
    memory = _call(_name(_DCP, "_MEM_FORMAT_ENCODING"), 0)
    state = (_name("torch", blocks[0].dtype), layout, False, memory, False)
    properties = _new(_DCP, "TensorProperties", state)
    chunks = [
        _new(_DCP, "ChunkStorageMetadata", {"offsets": _size(one.offset), "sizes": _size(one.size)})
        for one in blocks
    ]
    size = _size(blocks[0].global_size)
    whole = {"properties": properties, "size": size, "chunks": chunks}
    return _new(_DCP, "TensorStorageMetadata", whole)


def _value(given: Any) -> bytes:
    """Instructions for a value made of None, truths, whole numbers, texts, lists and tables."""
    match given:
        case _Code():
            return given
        case None:
            return b"N"
        case bool():
            return b"\x88" if given else b"\x89"
        case int():
            count = given.bit_length() // 8 + 1
            return b"\x8a" + bytes([count]) + given.to_bytes(count, "little", signed=True)
        case str():
            text = given.encode()
            return b"X" + struct.pack("<I", len(text)) + text
        case tuple():
            return b"(" + b"".join(map(_value, given)) + b"t"
        case list():
            return b"](" + b"".join(map(_value, given)) + b"e"
        case dict():
            items = (_value(key) + _value(value) for key, value in given.items())
            return b"}(" + b"".join(items) + b"u"
    raise TypeError(type(given))
