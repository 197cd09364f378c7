"""A checkpoint folder: what lies in it, and the commit mark that makes it one.

Beside Megatron's own files (`torch_dist.py`) it holds `hf/` (config, tokenizer and the other files
of the model folder) and `checkpoint.json`, written last: a folder without it, or whose files differ
from it in size, is no checkpoint.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from megatron_bridge.errors import InputError
from megatron_bridge.mapping import VOCAB_DIVISOR

MARK = "checkpoint.json"
HF_FILES = "hf"
FORMAT = "megaline-torch_dist-1"


class CheckpointFile(BaseModel):
    """One file of a checkpoint, by its path inside the folder and its size."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    bytes: int


class Dequantised(BaseModel):
    """What quantised weights a checkpoint was made from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    formats: dict[str, int]
    """Tensors by the format that they lay in."""
    tensors: int
    to: tuple[str, ...]
    """The number formats that they became."""


class CheckpointInfo(BaseModel):
    """The commit mark `checkpoint.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: str
    iteration: int
    consumed_samples: int
    model_type: str
    dtype: str
    vocab_size: int
    padded_vocab_size: int
    vocab_divisor: int = VOCAB_DIVISOR
    """`padded_vocab_size` is the next multiple of it."""
    optimizer: bool
    hf_prefix: bool = True
    """False where the Hugging Face file left the family's prefix off its names."""
    proven: bool = True
    """False for whatever comes from weights whose conversion has no certificate that holds."""
    dequantised: Dequantised | None = None
    """Set for whatever comes from quantised weights."""
    files: tuple[CheckpointFile, ...]


def commit(
    folder: Path,
    *,
    iteration: int,
    consumed_samples: int,
    model_type: str,
    dtype: str,
    vocab_size: int,
    padded_vocab_size: int,
    optimizer: bool,
    vocab_divisor: int = VOCAB_DIVISOR,
    hf_prefix: bool = True,
    proven: bool = True,
    dequantised: Dequantised | None = None,
) -> CheckpointInfo:
    """Sync every file of `folder` to disk, then write the commit mark in one atomic step."""
    files = []
    own = (MARK, f".{MARK}.partial")  # the second is left by a kill in this function
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in own):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        relative = path.relative_to(folder).as_posix()
        files.append(CheckpointFile(path=relative, bytes=path.stat().st_size))
    info = CheckpointInfo(
        format=FORMAT,
        iteration=iteration,
        consumed_samples=consumed_samples,
        model_type=model_type,
        dtype=dtype,
        vocab_size=vocab_size,
        padded_vocab_size=padded_vocab_size,
        vocab_divisor=vocab_divisor,
        optimizer=optimizer,
        hf_prefix=hf_prefix,
        proven=proven,
        dequantised=dequantised,
        files=tuple(files),
    )
    partial = folder / f".{MARK}.partial"
    with partial.open("w", encoding="utf-8") as file:
        file.write(info.model_dump_json(indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.rename(folder / MARK)
    sync_folder(folder)
    return info


def read_info(folder: Path) -> CheckpointInfo:
    """Return the commit mark of a whole checkpoint.

    Raises:
        InputError: no mark, an unreadable one, or a file that is missing or has another size.
    """
    folder = Path(folder)
    try:
        info = CheckpointInfo.model_validate_json((folder / MARK).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            "This is not a finished checkpoint",
            where=folder,
            expected=f"a folder with {MARK}, which is written last",
            got="a folder without it" if folder.is_dir() else "no such folder",
            fix="give a folder written by `python -m megatron_bridge import` or by training",
        ) from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise InputError(f"{MARK} cannot be read", where=folder / MARK, got=error) from error
    for entry in info.files:
        path = folder / entry.path
        size = path.stat().st_size if path.is_file() else None
        if size != entry.bytes:
            raise InputError(
                "The checkpoint is damaged",
                where=path,
                expected=f"{entry.bytes} bytes",
                got="no such file" if size is None else f"{size} bytes",
                fix="write the checkpoint again",
            )
    return info


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
