"""Files that `torch.save` wrote: any tree of values, its tensors left where they lie.

Such a file is a zip archive, uncompressed, with a pickle (`data.pkl`) and one member for each
storage. The pickle is read by an unpickler that builds nothing but what it knows; a tensor becomes
a `Stored`, so that a file of any size is read in pieces, and an object of a training run becomes
its name and values (`inert`).
"""

from __future__ import annotations

import functools
import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from megatron_bridge.errors import InputError, PipelineError
from megatron_bridge.sources import inert
from megatron_bridge.sources.ranges import Part, Ranges
from megatron_bridge.sources.stored import Stored
from megatron_bridge.sources.strided import Strided

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
_DTYPES = {*_STORAGES.values(), "float8_e4m3fn", "float8_e5m2"}


def load(file: Ranges) -> Any:
    """Return the tree of values in a file, each tensor as a `Stored`.

    Raises:
        InputError: no such file, a damaged one, or one that names anything else.
    """
    try:
        with zipfile.ZipFile(_Seekable(file)) as archive:
            (name,) = (n for n in archive.namelist() if n.split("/", 1)[-1] == "data.pkl")
            places = {
                info.filename.removeprefix(name.removesuffix("data.pkl")): info
                for info in archive.infolist()
            }
            if any(info.compress_type != zipfile.ZIP_STORED for info in places.values()):
                raise _damaged(file, "a compressed archive")
            pickled = archive.read(name)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError) as error:
        raise _damaged(file, error) from error
    try:
        return _Unpickler(pickled, file, places).load()
    except PipelineError:
        raise
    # A damaged pickle can fail in any way that reading one can.
    except Exception as error:
        raise _damaged(file, error) from error


class _Storage:
    """A typed storage that the pickle names, as a file of its own.

    Where its bytes begin is found when they are first read: a file elsewhere is not asked for the
    places of tensors that another thread reads.
    """

    def __init__(self, file: Ranges, info: zipfile.ZipInfo, dtype: Any) -> None:
        self.name, self.size, self.state = file.name, info.file_size, file.state
        self.dtype = dtype
        self._file, self._header = file, info.header_offset

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        return self._part.read(offset, length)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`."""
        self._part.read_into(offset, target)

    def close(self) -> None:
        """The whole file is closed by its owner."""

    @functools.cached_property
    def _part(self) -> Part:
        # The local header repeats the name and may have another extra field than the directory.
        local = self._file.read(self._header, 30)
        name, extra = (int.from_bytes(local[i : i + 2], "little") for i in (26, 28))
        return Part(self._file, self._header + 30 + name + extra, self.size)


class _Unpickler(pickle.Unpickler):
    """Builds plain values, tensors by reference, and inert stand-ins for a run's own objects."""

    def __init__(
        self,
        pickled: bytes,
        file: Ranges,
        places: Mapping[str, zipfile.ZipInfo],
    ) -> None:
        super().__init__(io.BytesIO(pickled))
        self._file, self._places = file, places
        self._storages: dict[tuple[str, Any], _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for an allowed name; anything else is refused before it runs."""
        known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch", "Size"): tuple,
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
            # A tensor with attributes of its own.
            ("torch._tensor", "_rebuild_from_type_v2"): lambda *parts: self._tensor(*parts[2]),
        }
        if (module, name) in known:
            return known[module, name]
        if (stand_in := inert.stand_in(module, name)) is not None:
            return stand_in
        import torch

        if module == "torch" and name in _STORAGES:
            return getattr(torch, _STORAGES[name])
        if module == "torch" and name in _DTYPES:
            return getattr(torch, name)
        if (module, name) == ("torch.storage", "UntypedStorage"):
            return torch.uint8
        raise InputError(
            "The file names something that does not belong into weights",
            where=self._file.name,
            expected="tensors and plain values",
            got=f"{module}.{name}",
            fix="do not open this file; it may have been made to run code",
        )

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the storage that the pickle refers to."""
        kind, dtype, key, *_ = pid
        if kind != "storage":
            raise _damaged(self._file, f"a reference to {kind!r}")
        if (key, dtype) not in self._storages:
            storage = _Storage(self._file, self._places[f"data/{key}"], dtype)
            self._storages[key, dtype] = storage
        return self._storages[key, dtype]

    def _tensor(self, storage: _Storage, offset: int, size: Any, stride: Any, *_: Any) -> Stored:
        sizes, strides = tuple(size), tuple(stride)
        item = storage.dtype.itemsize
        last = sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
        beyond = offset + (last + 1 if math.prod(sizes) else 0)
        if min(offset, *sizes, *strides, 0) < 0 or beyond * item > storage.size:
            raise _damaged(self._file, f"a tensor of {list(sizes)} beyond its storage")
        if _row_by_row(sizes, strides):
            return Stored(storage, offset * item, storage.dtype, sizes)
        return Strided(storage, offset * item, storage.dtype, sizes, strides)


def _row_by_row(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    step = 1
    for length, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if length > 1 and stride != step:
            return False
        step *= length
    return True


class _Seekable(io.RawIOBase):
    """A file by ranges as one that can be sought, for `zipfile`."""

    def __init__(self, file: Ranges) -> None:
        super().__init__()
        self._file, self._at = file, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._file.size - self._at)
        size = left if size is None or size < 0 else min(size, left)
        data = self._file.read(self._at, size) if size else b""
        self._at += size
        return data


def _damaged(file: Ranges, got: object) -> InputError:
    return InputError(
        "A weight file cannot be read",
        where=file.name,
        expected="a whole file of torch.save, in its zip format",
        got=got,
        fix="fetch the file again; one older than PyTorch 1.6 must be saved anew",
    )
