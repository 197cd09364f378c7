"""tokens: documents to token ids in Megatron's indexed format, split by document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.core.artifacts import CleanCorpus, HFModel, TokenDataset
from tasks.core.errors import ConfigError, ProofError
from tasks.core.fingerprint import Runtime
from tasks.core.stage import Context, stage


class TokensConfig(BaseModel):
    """How documents become token ids."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    end_of_document: str | None = Field(
        None, description="Token that ends each document; the tokenizer's own when left out"
    )
    validation: float = Field(0.05, ge=0, lt=1, description="Share of the documents")
    test: float = Field(0.05, ge=0, lt=1, description="Share of the documents")
    seed: int = Field(1234, ge=0, description="Deals documents to splits")
    workers: Annotated[int, Runtime] = Field(2, ge=1, description="Processes")

    @model_validator(mode="after")
    def _leaves_something_to_train_on(self) -> TokensConfig:
        if self.validation + self.test >= 1:
            raise ConfigError(
                "The splits leave nothing to train on", where="tokens.validation, tokens.test",
                expected="together less than 1", got=self.validation + self.test,
                fix="lower one of them",
            )  # fmt: skip
        return self


def _label(config: TokensConfig, inputs: list[str]) -> str:
    return "-".join(inputs)


def _check(out: Path, metrics: dict[str, Any]) -> None:
    from tasks.tokens import indexed, invariants

    for split, counted in metrics["splits"].items():
        index = indexed.open_index(out / split)
        found = {"documents": index.documents, "tokens": invariants.check(index)}
        if found != counted:
            raise ProofError(
                "A split is not what was counted", where=out / split, expected=counted, got=found
            )
        last_ids = invariants.last_ids(index)
        if last_ids - {metrics["end_of_document"]}:
            raise ProofError(
                "A document does not end in end-of-document", where=out / split,
                expected=metrics["end_of_document"], got=sorted(last_ids),
            )  # fmt: skip


@stage("tokens", version=2, output=TokenDataset, label=_label, check=_check)
def tokens(
    config: TokensConfig, ctx: Context, corpus: CleanCorpus, model: HFModel
) -> dict[str, Any]:
    """Tokenize with the model's own tokenizer, an end-of-document after each document.

    Beside the splits lie documents.jsonl (per document: split, index there, tokens, id, title,
    revision, and the source file and range of it that it was made from), set_aside.jsonl (lines
    that are no document), tokenizer.json and tokens.json (the metrics). Killed in the middle, it
    goes on.
    """
    from tasks.core.tokenizer_files import digests
    from tasks.tokens import dataset, lines, tokenizer
    from tasks.tokens.encode import Job, Splits
    from tasks.tokens.encoders.choice import choose
    from tasks.tokens.indexed import code_of

    ctx.progress(0, 0, note="loading the tokenizer")
    prepared = tokenizer.prepare(model.folder, ctx.out, config.end_of_document)
    choice = choose(prepared.spec, lines.texts(lines.sample(corpus.shards), ["text"]))
    job = Job(
        choice.spec, code_of(prepared.vocab_size), prepared.end_of_document,
        splits=Splits(config.validation, config.test, config.seed),
    )  # fmt: skip
    files = {"tokenizer_files": digests(model.folder), "tokenizer_file": prepared.spec.file.name}
    facts = {**prepared.facts(), **files, **choice.facts()}
    facts |= dataset.write(corpus.shards, ctx.out, ctx.scratch, job, config.workers, ctx.progress)
    (ctx.out / "tokens.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return facts
