"""Where an export begins: a checkpoint of ours, or a directory that Megatron-LM wrote.

Ours has the model's other files beside it and a certificate of its own. For Megatron-LM's they are
made, in a folder that lives as long as the export.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge import checkpoint, families
from megatron_bridge.errors import ConfigError, InputError, MappingError
from megatron_bridge.megatron_lm import sides
from megatron_bridge.megatron_lm.arguments import vocabulary_multiple
from megatron_bridge.megatron_lm.folder import Run, is_ours, is_run, open_run, tensors
from megatron_bridge.megatron_lm.sides import Given

if TYPE_CHECKING:
    from megatron_bridge.proof import Proof

EMBEDDING = "embedding.word_embeddings.weight"


@dataclass(frozen=True)
class Origin:
    """What an export reads."""

    folder: Path
    """The checkpoint's own folder."""
    files: Path
    """A folder with the `config.json`, tokenizer and other files of the export."""
    described: Path
    """A folder with the `config.json` of the model that is built and compared."""
    hf_prefix: bool = True
    run: Run | None = None
    """Set for Megatron-LM's."""
    told: sides.Told | None = None

    def check(self, proof: Proof) -> None:
        """Refuse a proof that needs a checkpoint of ours.

        Raises:
            ConfigError: both models were to be run.
        """
        if self.run is not None and proof.runs:
            raise ConfigError(
                "A directory of Megatron-LM is not run here",
                where="--logits, --text",
                expected="an export without them, which builds the model and compares it",
                got=self.folder,
                fix="export it first, then import what was exported with --logits or --text",
            )

    def tell(self, found: dict[str, Any]) -> None:
        """Say in a certificate where the proof began.

        The exported folder holds what the checkpoint holds, and the model of its `config.json` is
        the one that the run's arguments describe. Without arguments nobody knows what the run
        computed, and the export is not proven.
        """
        if self.run is None or self.told is None:
            return
        found["origin"] = {
            "format": self.run.format,
            "iteration": self.run.iteration,
            **self.told,
        }
        found["vocabulary"]["divisor"] = vocabulary_multiple(self.run.arguments)
        found["files"] = {name: {"sha256": f["sha256"]} for name, f in found["files"].items()}
        found["proven"] = bool(self.run.arguments)


@contextmanager
def opened(folder: Path, like: Path | None, given: Given) -> Iterator[Origin]:
    """Yield what a folder is to an export.

    Args:
        folder: a checkpoint of ours, or what Megatron-LM wrote.
        like: a Hugging Face folder whose files are taken.
        given: what is known of a Megatron-LM run.

    Raises:
        ConfigError, InputError: it is neither, or something must be asked for.
        MappingError: `like` is of another family, and the tensors do not fit it.
    """
    given = replace(given, like=like)
    if is_run(folder) and not is_ours(folder):
        run = open_run(folder)
        with tempfile.TemporaryDirectory(prefix="megaline-") as files:
            told = sides.write(run.arguments, padded_vocabulary(run), given, Path(files))
            yield Origin(run.folder, Path(files), Path(files), run=run, told=told)
        return
    if (folder / "config.json").is_file() and not is_ours(folder):
        raise InputError(
            "This is a Hugging Face folder, not a checkpoint",
            where=folder,
            expected=f"{checkpoint.MARK}, or what Megatron-LM wrote",
            got="config.json",
            fix=f"did you mean import? python -m megatron_bridge import {folder} OUT",
        )
    info = checkpoint.read_info(folder)
    if given != Given(like=like):
        raise ConfigError(
            "This checkpoint has the model's config and tokenizer beside it",
            where="--tokenizer, --vocab-size, --model-type",
            expected="none of them; they are for directories that Megatron-LM wrote",
            got=folder,
            fix="leave them out, or give another config and tokenizer by --like",
        )
    hf = folder / checkpoint.HF_FILES
    try:
        yield Origin(folder, like or hf, hf, info.hf_prefix)
    except MappingError as error:
        named = families.read_config(like or hf).get("model_type")
        if named == info.model_type:
            raise
        raise MappingError(
            f"The checkpoint is {info.model_type}, --like is {named}",
            where=f"--like {like}",
            expected=f"a folder of the checkpoint's family, {info.model_type}",
            got=f"{named}, to which its tensors do not belong",
            fix="leave --like out, or give a folder of the model that was trained",
        ) from error


def padded_vocabulary(run: Run) -> int:
    """Return the rows of a run's embedding.

    Raises:
        InputError: it has none.
    """
    opened_tensors = tensors(run.folder)
    try:
        shapes = opened_tensors.shapes()
    finally:
        opened_tensors.close()
    names = (EMBEDDING, f"model.{EMBEDDING}", f"module.{EMBEDDING}")
    for name in names:
        if name in shapes:
            return shapes[name][0][0]
    raise InputError(
        "The checkpoint has no word embeddings",
        where=run.folder,
        expected=" or ".join(names),
        got=", ".join(sorted(shapes)[:4]) or "no tensors",
        fix="give the checkpoint of a language model of Megatron-Core",
    )
