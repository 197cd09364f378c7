"""The token datasets that a run draws from: the line's own, or several with weights.

Light: `megaline plan` asks this for the table, from records alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from megatron_bridge.config import DataSource
from megatron_bridge.data import blend
from tasks.core.artifacts import TokenDataset
from tasks.core.errors import ConfigError, InputError, ProofError
from tasks.core.record import RECORD_NAME, decode
from tasks.core.tokenizer_files import sha256_of

LINE = "line"
_MODELS = ("tokenizer_sha256", "vocab_size", "dtype", "end_of_document")
_SPLIT_BY = ("seed", "validation", "test")


class Portion(BaseModel):
    """A dataset's part of the samples."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: str = Field(description="`line`, or the folder of another output of the tokens stage")
    weight: float = Field(gt=0, allow_inf_nan=False, description="Relative to the others'")
    repeats: bool = Field(False, description="It may be gone through more than once")


def identity(portions: Sequence[Portion]) -> dict[str, Any]:
    """What of a blend bears on a run: which datasets by their fingerprints, and their weights.

    Raises:
        InputError: one of them is not there.
    """
    named = [
        {"tokens": LINE if one.tokens == LINE else _open(one.tokens).fingerprint,
         "weight": one.weight}
        for one in portions
    ]  # fmt: skip
    return {"blend": named} if named else {}


def sources(portions: Sequence[Portion], line: TokenDataset) -> list[DataSource]:
    """The datasets with their weights; without a blend the line's own, as often as asked for.

    Raises:
        ConfigError: two of them were made of one corpus.
        InputError: one is not there, or does not fit the line's.
        ProofError: a tokenizer is no longer the one that its dataset was made with.
    """
    found = _datasets(portions, line)
    for _, dataset in found:
        _keeps_its_tokenizer(dataset)
    return [
        DataSource(
            prefix=dataset.prefix("train").resolve(),
            weight=portion.weight,
            repeats=portion.repeats,
            name=dataset.name,
        )
        for portion, dataset in found
    ]


def table(
    portions: Sequence[Portion], line: TokenDataset, samples: int, sequence_length: int
) -> list[blend.Row]:
    """What a run takes of each dataset, at most; see `megatron_bridge.data.blend.table`.

    Raises:
        ConfigError: more is asked of one than it holds, and it may not be repeated.
    """
    stocks = []
    for portion, dataset in _datasets(portions, line):
        there = dataset.metrics["splits"]["train"]
        stocks.append(
            blend.Stock(
                dataset.name, there["documents"], there["tokens"], portion.weight, portion.repeats
            )
        )
    counts = blend.at_most([stock.weight for stock in stocks], samples)
    return blend.table(stocks, counts, sequence_length)


def _datasets(
    portions: Sequence[Portion], line: TokenDataset
) -> list[tuple[Portion, TokenDataset]]:
    portions = portions or [Portion(tokens=LINE, weight=1, repeats=True)]
    found = [(one, line if one.tokens == LINE else _open(one.tokens)) for one in portions]
    others = [dataset for one, dataset in found if one.tokens != LINE]
    corpora = {_corpus(line): line}
    for dataset in others:
        _fits(dataset, line)
        if (twin := corpora.setdefault(_corpus(dataset), dataset)) is not dataset:
            raise _twice(dataset, twin)
    if len(portions) - len(others) > 1:
        raise _twice(line, line)
    return found


def _open(place: str) -> TokenDataset:
    folder = Path(place).expanduser().resolve()
    record = folder / RECORD_NAME
    if not record.is_file():
        raise InputError(
            "There is no sealed token dataset", where=f"train.blend, {place}",
            expected=f"`{LINE}`, or a folder STORE/tokens/LABEL/FINGERPRINT with {RECORD_NAME}",
            got="none", fix="make it with `megaline run … --until tokens`, or correct the path",
        )  # fmt: skip
    dataset = TokenDataset(path=folder, record=decode(record.read_bytes(), folder))
    if dataset.record.stage != "tokens":
        raise InputError(
            "A blend is made of token datasets", where=f"train.blend, {place}",
            expected="an output of the tokens stage", got=f"one of {dataset.record.stage}",
            fix="name a folder STORE/tokens/LABEL/FINGERPRINT",
        )  # fmt: skip
    return dataset


def _fits(dataset: TokenDataset, line: TokenDataset) -> None:
    for key in _MODELS:
        got, expected = dataset.metrics.get(key), line.metrics.get(key)
        if got != expected:
            raise InputError(
                f"A blended dataset does not fit the model: its {key} is another",
                where=f"train.blend, {dataset.path}", expected=f"{expected}, as in {line.path}",
                got=got, fix="make it anew with the tokens stage of a line with the same model",
            )  # fmt: skip
    for key in _SPLIT_BY:
        got, expected = (one.record.identity["identity"].get(key) for one in (dataset, line))
        if got != expected:
            # Splits are dealt by a hash of a document's id: what is in both, is in the same one.
            raise InputError(
                "A blended dataset was split in another way, so that what is held out here may be "
                f"trained on there: its tokens.{key} is another",
                where=f"train.blend, {dataset.path}", expected=f"{expected}, as in {line.path}",
                got=got, fix=f"make it anew with tokens.{key}={expected}",
            )  # fmt: skip


def _keeps_its_tokenizer(dataset: TokenDataset) -> None:
    file = dataset.data / dataset.metrics.get("tokenizer_file", "tokenizer.json")
    expected = dataset.metrics["tokenizer_sha256"]
    got = sha256_of(file) if file.exists() else "no such file"
    if got != expected:
        raise ProofError(
            "The tokenizer of a sealed dataset is no longer the one it was made with", where=file,
            expected=f"SHA-256 {expected}", got=got,
            fix="put the file back, or run the tokens stage anew with --force tokens",
        )  # fmt: skip


def _corpus(dataset: TokenDataset) -> str:
    """The fingerprint of the documents that a dataset was made of, or its own."""
    named = {entry.name: entry.fingerprint for entry in dataset.record.inputs}
    return named.get("corpus", dataset.fingerprint)


def _twice(dataset: TokenDataset, twin: TokenDataset) -> ConfigError:
    return ConfigError(
        "Two datasets of a blend were made of one corpus", where=f"train.blend, {dataset.path}",
        expected="each corpus once, so that its weight is the one that is told",
        got=f"the documents of {twin.path} again",
        fix=f"leave one out, and name the line's own as `{LINE}`",
    )  # fmt: skip
