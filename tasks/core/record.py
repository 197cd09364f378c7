"""`artifact.json`: what an output is, what it was made from, and the files it consists of."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tasks.core.errors import InputError

RECORD_NAME = "artifact.json"


class FileEntry(BaseModel):
    """One file of an output; `path` is relative to its `data/` folder, with forward slashes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    bytes: int = Field(ge=0)
    sha256: str

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts:
            raise ValueError("a record's file must lie inside data/")
        return path


class InputEntry(BaseModel):
    """One output that went in: the parameter's name, and where in the store it lies."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    stage: str
    label: str
    fingerprint: str


class Record(BaseModel):
    """The record of one sealed output. An output exists only when its record exists."""

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    schema_version: Literal[1] = Field(1, alias="schema")
    stage: str
    version: int
    label: str
    fingerprint: str
    identity: dict[str, Any] = Field(description="The hashed JSON itself")
    inputs: list[InputEntry]
    files: list[FileEntry]
    metrics: dict[str, Any]
    provenance: dict[str, Any]
    created_at: datetime
    seconds: float

    def encode(self) -> bytes:
        """The record as the bytes of `artifact.json`: UTF-8, indented."""
        text = json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False)
        return f"{text}\n".encode()


def decode(data: bytes, where: object) -> Record:
    """The record in the bytes of an `artifact.json`.

    Raises:
        InputError: the bytes are not a record of this schema.
    """
    try:
        return Record.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            "The record cannot be read",
            where=f"{where}, {'.'.join(map(str, first['loc'])) or 'top level'}",
            expected="a record of schema 1",
            got=first["msg"],
            fix="remove the folder; the next run builds it again",
        ) from error
