"""The tokenizer that goes with a run: its files, how many ids it has, and its special ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        config, ids = _read(self.folder / "tokenizer_config.json"), self._ids()
        found = {}
        for kind in ("bos", "eos", "pad"):
            token = config.get(f"{kind}_token")
            token = token.get("content") if isinstance(token, dict) else token
            if token in ids:
                found[f"{kind}_token_id"] = ids[token]
        return found

    def copy(self, target: Path) -> None:
        """Copy its files."""
        for name in self.files:
            shutil.copyfile(self.folder / name, target / name)

    def _ids(self) -> dict[str, int]:
        whole = _read(self.folder / "tokenizer.json")
        vocab: Any = whole.get("model", {}).get("vocab") or _read(self.folder / "vocab.json")
        if isinstance(vocab, list):
            vocab = {piece[0]: number for number, piece in enumerate(vocab)}
        added = {entry["content"]: entry["id"] for entry in whole.get("added_tokens", ())}
        later = _read(self.folder / "tokenizer_config.json").get("added_tokens_decoder", {})
        listed = {entry["content"]: int(number) for number, entry in later.items()}
        return {**vocab, **_read(self.folder / "added_tokens.json"), **listed, **added}


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


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON file's table; empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(
            "A tokenizer's file is not JSON", where=path, expected="a table", got=error
        ) from error
    return found if isinstance(found, dict) else {}
