"""Records read backwards: what an output stands on, and why it is not the one that is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.line import Planned
from tasks.core.errors import InputError
from tasks.core.fingerprint import differences, digest
from tasks.core.record import RECORD_NAME, InputEntry, Record, decode
from tasks.core.store import Store


@dataclass(frozen=True)
class Reason:
    """The sealed output of a stage that is nearest to the planned one, and what differs."""

    nearest: Path
    differences: list[str]


def why(store: Store, planned: Mapping[str, Planned], stage: str) -> Reason | None:
    """Compare a planned stage, and all that it stands on, with the nearest sealed output.

    Returns:
        None where nothing of the stage is sealed in this store.
    """
    wanted = _planned_history(planned, stage)
    found = []
    for record in store.records(stage):
        path = store.root / stage / record.label / record.fingerprint
        found.append(Reason(path, differences(_history(store.root, record), wanted)))
    return min(found, key=lambda reason: len(reason.differences), default=None)


def open_record(path: Path) -> tuple[Path, Record]:
    """The output folder and record that a path belongs to: the folder, its `data/`, or the file.

    Raises:
        InputError: there is no record.
    """
    path = path.resolve()
    for folder in (path, path.parent):
        if (folder / RECORD_NAME).is_file():
            return folder, decode((folder / RECORD_NAME).read_bytes(), folder)
    raise InputError(
        "There is no sealed output", where=path, expected=f"a folder with {RECORD_NAME}",
        got="none", fix="take a path that `megaline plan` shows as sealed",
    )  # fmt: skip


def ancestors(folder: Path, record: Record) -> dict[str, Record | None]:
    """Every output this one was made from, by path in the store; None where it is gone."""
    root = folder.parents[2] if len(folder.parents) > 2 else folder
    found: dict[str, Record | None] = {}
    waiting = list(record.inputs)
    while waiting:
        entry = waiting.pop(0)
        key = f"{entry.stage}/{entry.label}/{entry.fingerprint}"
        if key not in found:
            found[key] = above = _read(root, entry)
            waiting += above.inputs if above else []
    return found


def mismatches(folder: Path, record: Record, deep: bool = False) -> list[str]:
    """Where an output and its record disagree, in words: files, strangers among them, the hash."""
    data = f"{folder.name}/data"
    wrong = Store(folder.parent).misfits(record, data, deep)
    listed = {folder / "data" / entry.path for entry in record.files}
    wrong += [
        f"{path.relative_to(folder / 'data')} is in no record"
        for path in sorted((folder / "data").rglob("*"))
        if not path.is_dir() and path not in listed
    ]
    if digest(record.identity) != record.fingerprint:
        wrong.append(f"the identity hashes to {digest(record.identity)}, not {record.fingerprint}")
    return wrong


def _planned_history(planned: Mapping[str, Planned], stage: str) -> dict[str, Any]:
    address = planned[stage].address
    history = {stage: _own(address.version, address.identity)}
    for entry in address.inputs:
        history |= _planned_history(planned, entry.stage)
    return history


def _history(root: Path, record: Record) -> dict[str, Any]:
    """Per stage, what was hashed of its own; a lost ancestor shows its fingerprint only."""
    history = {record.stage: _own(record.version, record.identity)}
    for entry in record.inputs:
        above = _read(root, entry)
        lost = {entry.stage: {"(record)": f"lost, was {entry.fingerprint}"}}
        history |= _history(root, above) if above else lost
    return history


def _own(version: int, identity: Mapping[str, Any]) -> dict[str, Any]:
    return {"(version)": version, **identity["identity"]}


def _read(root: Path, entry: InputEntry) -> Record | None:
    path = root / entry.stage / entry.label / entry.fingerprint / RECORD_NAME
    return decode(path.read_bytes(), path.parent) if path.is_file() else None
