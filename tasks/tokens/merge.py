"""Several indexed datasets behind one another as one; every byte of theirs is accounted for.

Neither Megatron nor memory is needed: indices are read, checked and written in pieces.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from tasks.core.errors import ConfigError, ProofError, RetryableError
from tasks.tokens.indexed import START, Index, header, open_index, require_size
from tasks.tokens.invariants import ends_of, sequences_of

SUFFIXES = (".bin", ".idx")
_COPIED = 1 << 28
"""Bytes the kernel is asked to copy at a time, between two signs of progress."""


@dataclass(frozen=True)
class Merged:
    """What a merged dataset holds; `bytes` is the size of its `.bin`."""

    datasets: int
    documents: int
    sequences: int
    tokens: int
    bytes: int
    dtype: str
    multimodal: bool


def merge(
    inputs: Sequence[Path], out: Path, progress: Callable[[int, int], None] = lambda *_: None
) -> Merged:
    """Write `out.bin` and `out.idx`; they appear, `.idx` last, when they are whole.

    Args:
        inputs: prefixes, in order.
        out: prefix; neither of its files is there.
        progress: called with bytes of ids copied, and in all.

    Raises:
        ConfigError: nothing to merge, or `out` is there, or no name.
        InputError: an input is no indexed dataset.
        ProofError: an input contradicts itself, or inputs have different number formats.
        RetryableError: the same command is running.
    """
    require_name(out)
    require_absent(_files(out))
    indices = [open_index(prefix) for prefix in inputs]
    dtype, multimodal = _common(indices)
    sequences = sum(index.sequences for index in indices)
    documents = sum(index.documents for index in indices)
    new = out.with_name(f".{out.name}.new")
    data, described = _files(new)
    with open(described, "ab") as held:
        lock(held)
        try:
            with open(described, "wb") as file:
                file.write(header(dtype, sequences, documents))
                tokens = _write_index(file.name, indices, multimodal)
            with open(data, "wb") as file:
                _copy(indices, file, tokens * dtype.itemsize, progress)
            require_absent(_files(out))
            for path, place in zip((data, described), _files(out), strict=True):
                os.rename(path, place)
        finally:
            for path in (data, described):
                path.unlink(missing_ok=True)
    return Merged(
        len(indices), documents, sequences, tokens, tokens * dtype.itemsize, dtype.name, multimodal
    )


def prefixes(paths: Iterable[Path]) -> list[Path]:
    """The datasets that paths name: a prefix, either of its files, or a folder of datasets.

    Those of a folder come in the order of their names, as Megatron-LM's `merge_datasets.py` takes
    them.

    Raises:
        ConfigError: a folder has none, or half of one.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path.with_suffix("") if path.suffix in SUFFIXES else path)
            continue
        # What begins with a dot is the half of a merge that was killed.
        files = [file for file in path.iterdir() if not file.name.startswith(".")]
        names = sorted({file.stem for file in files if file.suffix in SUFFIXES})
        if not names:
            raise ConfigError(
                "There is nothing to merge", where=path, expected="pairs of .bin and .idx",
                got="a folder without them",
            )  # fmt: skip
        found += [path / name for name in names]
    return found


def lock(file: IO[Any]) -> None:
    """Keep a file, as long as it is open, from other commands that would write the same dataset.

    Raises:
        RetryableError: another one has it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RetryableError(
            "The same dataset is being written", where=file.name,
            expected="one command at a time", got="another that runs",
            fix="wait for it, or name another output",
        ) from error  # fmt: skip


def require_name(out: Path) -> None:
    """Refuse a prefix that names a folder alone.

    Raises:
        ConfigError: as for `.`.
    """
    if not out.name:
        raise ConfigError(
            "The output has no name", where=out, expected="what its files' names begin with",
            got="a folder", fix=f"add a name, as in {out / 'all'}",
        )  # fmt: skip


def require_absent(paths: Iterable[Path]) -> None:
    """Refuse to write over anything.

    Raises:
        ConfigError: one of the files is there, or their folder is not.
    """
    for path in paths:
        if path.exists():
            raise ConfigError(
                "The output is there already", where=path, expected="a new name", got="a file",
                fix="name another output, or remove this one",
            )  # fmt: skip
        if not path.parent.is_dir():
            raise ConfigError(
                "The output's folder is not there", where=path.parent, expected="a folder",
                got="none", fix="make it first",
            )  # fmt: skip


def _files(prefix: Path) -> tuple[Path, Path]:
    data, described = (Path(f"{prefix}{suffix}") for suffix in SUFFIXES)
    return data, described


def _common(indices: Sequence[Index]) -> tuple[np.dtype[Any], bool]:
    if not indices:
        raise ConfigError("There is nothing to merge", expected="at least one dataset", got="none")
    first = indices[0]
    # Without sequences nothing tells whether they would have modes.
    modes = {index.multimodal: index for index in indices if index.sequences}
    for index in indices:
        if index.dtype != first.dtype:
            raise ProofError(
                "The datasets have different number formats", where=index.path,
                expected=f"{first.dtype.name}, as in {first.path}", got=index.dtype.name,
                fix="tokenize them again with one tokenizer",
            )  # fmt: skip
    if len(modes) > 1:
        raise ProofError(
            "Some datasets are multimodal, others are not", where=modes[False].path,
            expected=f"a mode for each sequence, as in {modes[True].path}", got="none",
        )  # fmt: skip
    return first.dtype, True in modes


def _write_index(path: str, indices: Sequence[Index], multimodal: bool) -> int:
    """Write all parts of the index side by side; returns the number of tokens."""
    sequences = sum(index.sequences for index in indices)
    ends_at = START + 12 * sequences
    modes_at = ends_at + 8 * (1 + sum(index.documents for index in indices))
    parts = [open(path, "r+b") for _ in range(4)]
    try:
        for part, place in zip(
            parts, (START, START + 4 * sequences, ends_at, modes_at), strict=True
        ):
            part.seek(place)
        lengths, offsets, ends, modes = parts
        ends.write(np.zeros(1, "<i8").data)
        tokens = done = 0
        for index in indices:
            added = 0
            for length, offset in sequences_of(index):
                lengths.write(length.data)
                offsets.write((offset + tokens * index.dtype.itemsize).data)
                added += int(length.sum(dtype=np.int64))
            require_size(index, added)
            for end in ends_of(index):
                ends.write((end + done).data)
            for mode in index.modes() if multimodal else ():
                modes.write(mode.data)
            tokens += added
            done += index.sequences
    finally:
        for part in parts:
            part.close()
    return tokens


def _copy(
    indices: Sequence[Index], out: BinaryIO, total: int, progress: Callable[[int, int], None]
) -> None:
    done = 0
    for index in indices:
        with open(index.data, "rb") as file:
            for count in _copied(file, out):
                done += count
                progress(done, total)
    if done != total:
        raise ProofError(
            "A dataset changed while it was merged", where=out.name,
            expected=f"{total} bytes of ids", got=f"{done} bytes", fix="run again when it is whole",
        )  # fmt: skip


def _copied(file: BinaryIO, out: BinaryIO) -> Iterator[int]:
    """Append a file inside the kernel; yields how many bytes each call took."""
    try:
        while count := os.copy_file_range(file.fileno(), out.fileno(), _COPIED):
            yield count
    except OSError:
        # Between some file systems the kernel does not copy; what it has copied, stays.
        out.seek(0, os.SEEK_END)
        before = out.tell()
        shutil.copyfileobj(file, out, 1 << 20)
        out.flush()
        yield out.tell() - before
