"""The tokenizer that goes with a run: its files, how many ids it has, and its special ones."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, RootModel, ValidationError

from megatron_bridge.errors import InputError

_VOCABULARIES = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json",
    "tiktoken.model",
)  # fmt: skip
"""Files of which any one makes a folder a tokenizer's."""
_BESIDE = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip


class _Token(BaseModel):
    content: str


class _Added(_Token):
    id: int


class _Model(BaseModel):
    vocab: dict[str, int] | list[tuple[str, float]] = {}


class _Whole(BaseModel):
    model: _Model = _Model()
    added_tokens: list[_Added] = []


class _Config(BaseModel):
    added_tokens_decoder: dict[int, _Token] = {}
    bos_token: _Token | str | None = None
    eos_token: _Token | str | None = None
    pad_token: _Token | str | None = None


class _Ids(RootModel[dict[str, int]]):
    root: dict[str, int] = {}


_Table = TypeVar("_Table", bound=BaseModel)


@dataclass(frozen=True)
class Tokenizer:
    """A folder of tokenizer files."""

    folder: Path

    @property
    def files(self) -> list[str]:
        """Names of its files; nothing else in the folder is touched."""
        return [name for name in (*_VOCABULARIES, *_BESIDE) if (self.folder / name).is_file()]

    @property
    def size(self) -> int | None:
        """The number of ids; None where only a library could tell."""
        return max(self._ids().values(), default=-1) + 1 or None

    def special(self) -> dict[str, int]:
        """Return the ids of the tokens that begin and end a text, and of padding, where it says."""
        config, ids = self._config(), self._ids()
        found = {}
        for kind, token in (("bos", config.bos_token), ("eos", config.eos_token),
                            ("pad", config.pad_token)):  # fmt: skip
            token = token.content if isinstance(token, _Token) else token
            if token in ids:
                found[f"{kind}_token_id"] = ids[token]
        return found

    def copy(self, target: Path) -> None:
        """Copy its files."""
        for name in self.files:
            shutil.copyfile(self.folder / name, target / name)

    def _ids(self) -> dict[str, int]:
        whole = _read(self.folder / "tokenizer.json", _Whole)
        vocab = whole.model.vocab or _read(self.folder / "vocab.json", _Ids).root
        if isinstance(vocab, list):
            vocab = {piece: number for number, (piece, _) in enumerate(vocab)}
        added = {entry.content: entry.id for entry in whole.added_tokens}
        later = self._config().added_tokens_decoder
        listed = {entry.content: number for number, entry in later.items()}
        return {**vocab, **_read(self.folder / "added_tokens.json", _Ids).root, **listed, **added}

    def _config(self) -> _Config:
        return _read(self.folder / "tokenizer_config.json", _Config)


def given(folder: Path) -> Tokenizer:
    """Return the tokenizer of a folder that somebody named.

    Raises:
        InputError: there is none.
    """
    found = Tokenizer(Path(folder).resolve())
    if not set(found.files) & set(_VOCABULARIES):
        raise InputError(
            "The folder holds no tokenizer",
            where=folder,
            expected=" or ".join(_VOCABULARIES),
            got=", ".join(found.files) or "none of these",
            fix="give the folder with the tokenizer that the run used",
        )
    return found


def of_run(arguments: Mapping[str, Any]) -> Tokenizer | None:
    """Return the tokenizer that a run's arguments name, if its folder is on this machine."""
    name = arguments.get("tokenizer_model")
    if not isinstance(name, str) or not Path(name).is_absolute() or not Path(name).is_dir():
        return None
    found = Tokenizer(Path(name))
    return found if set(found.files) & set(_VOCABULARIES) else None


def _read(path: Path, table: type[_Table]) -> _Table:
    """Return what is looked at in a JSON file; empty where there is no such file."""
    if not path.is_file():
        return table()
    try:
        return table.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"])) or "the whole file"
        raise InputError(
            "A tokenizer's file is not what tokenizers write",
            where=f"{path}, {at}",
            expected=first["msg"],
            got=repr(first["input"])[:80],
            fix="copy the file here again",
        ) from error
