"""The vocabulary of the line: what a sealed output folder is, and what its reader may ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tasks.core.record import Record

Split = Literal["train", "validation", "test"]


class Artifact(BaseModel):
    """One sealed output: the folder `{store}/{stage}/{label}/{fingerprint}/` and its record."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    record: Record

    @property
    def data(self) -> Path:
        """The folder with exactly the files that the record lists."""
        return self.path / "data"

    @property
    def fingerprint(self) -> str:
        """12 hexadecimal digits."""
        return self.record.fingerprint

    @property
    def label(self) -> str:
        """The readable part of the path."""
        return self.record.label

    @property
    def name(self) -> str:
        """Label and fingerprint, as in the path."""
        return f"{self.label}/{self.fingerprint}"

    @property
    def metrics(self) -> dict[str, Any]:
        """What the stage measured, as JSON values."""
        return self.record.metrics

    @property
    def files(self) -> list[Path]:
        """Every file of the record, in the record's order (sorted by path)."""
        return [self.data / entry.path for entry in self.record.files]


class RawCorpus(Artifact):
    """Source files as they came."""


class CleanCorpus(Artifact):
    """Documents as JSON lines in parts.

    Each has `id`, `url`, `title`, `language`, `text`, `revision`, and where it is from: `source` (a
    file of the raw corpus) and `range` (bytes of that file unpacked, or rows of Parquet).
    """

    @property
    def shards(self) -> list[Path]:
        """The shards `part-00000.jsonl`, `part-00001.jsonl`, … in order."""
        return [path for path in self.files if path.name.startswith("part-")]


class HFModel(Artifact):
    """A Hugging Face model folder: weights, config and tokenizer."""

    @property
    def folder(self) -> Path:
        """The folder that `from_pretrained` takes."""
        return self.data


class TokenDataset(Artifact):
    """Token ids in Megatron's indexed format, split by document."""

    def prefix(self, split: Split) -> Path:
        """The path prefix of a split, to which Megatron adds `.bin` and `.idx`."""
        return self.data / split


class MegatronCheckpoint(Artifact):
    """A `torch_dist` checkpoint with the Hugging Face files it came from."""

    @property
    def checkpoint(self) -> Path:
        """The checkpoint folder, `checkpoint.json` inside."""
        return self.data / "checkpoint"


class EvalReport(Artifact):
    """What an evaluation measured, as JSON and as text."""

    @property
    def report(self) -> Path:
        """The JSON report."""
        return self.data / "report.json"


class EasService(Artifact):
    """A bundle that PAI-EAS can serve."""

    @property
    def bundle(self) -> Path:
        """The bundle's folder."""
        return self.data
