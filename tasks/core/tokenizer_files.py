"""The files of a model folder that decide on token ids, by digest: the same ones for all stages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tasks.core.errors import ProofError
from tasks.core.fingerprint import digest, sha256_file

# tokenizer_config.json is not among them: a chat template changes no ids of a text.
_NAMES = {
    "tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "added_tokens.json", "tekken.json"
}  # fmt: skip
_SUFFIXES = (".model", ".tiktoken")


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 by file name."""
    return {
        file.name: sha256_file(file)
        for file in sorted(folder.iterdir())
        if file.is_file() and (file.name in _NAMES or file.name.endswith(_SUFFIXES))
    }


def sha256_of(path: Path) -> str:
    """The digest of a tokenizer's one file, or of the folder of one that has several."""
    if path.is_dir():
        return digest({file.name: sha256_file(file) for file in sorted(path.iterdir())})
    return sha256_file(path)


def require_same(recorded: Mapping[str, str], folder: Path, dataset: Path) -> None:
    """Refuse a model whose tokenizer is not the one that a dataset was made with.

    Args:
        recorded: `digests` of the model folder when the dataset was made.
        folder: the model's, now.
        dataset: where the dataset lies.

    Raises:
        ProofError: names the files that differ.
    """
    found = digests(folder)
    names = sorted({*recorded, *found})
    if differ := [name for name in names if recorded.get(name) != found.get(name)]:
        told = [
            ", ".join(f"{name} {side.get(name, 'absent')[:12]}" for name in differ)
            for side in (recorded, found)
        ]
        raise ProofError(
            "The model's tokenizer is not the one that the tokens were made with", where=folder,
            expected=f"{told[0]}, as recorded in {dataset}", got=told[1],
            fix="put the files back, or make the tokens anew with this model",
        )  # fmt: skip
