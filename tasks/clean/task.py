"""clean: a MediaWiki dump to documents as JSON lines, with counts of all that was dropped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.clean.documents import Rules, write_shards
from tasks.clean.filters import Thresholds
from tasks.core.artifacts import CleanCorpus, RawCorpus
from tasks.core.errors import ProofError
from tasks.core.fingerprint import Runtime
from tasks.core.stage import Context, stage


class CleanConfig(BaseModel):
    """What becomes of wiki markup, and which documents stay."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    repair: bool = Field(True, description="Repair mojibake and other broken text with ftfy")
    on_damage: Literal["error", "keep"] = Field(
        "error", description="A dump that ends early: stop, or keep the pages before the damage"
    )
    shard_mib: int = Field(64, ge=1, description="A shard ends when it has reached this size")
    min_words: int = Field(20, ge=0, description="Drop documents with fewer words")
    min_sentences: int = Field(2, ge=0, description="Drop documents with fewer sentences")
    min_mean_word_length: float = Field(2.5, ge=0, description="Shorter words are no prose")
    max_mean_word_length: float = Field(12.0, gt=0, description="Longer words are no prose")
    max_symbol_share: float = Field(
        0.25, ge=0, description="Most symbols of markup and code a word"
    )
    max_unpunctuated_share: float = Field(
        0.99, ge=0, le=1, description="Largest share of text in lines that end no sentence"
    )
    min_stop_words: int = Field(
        2, ge=0, le=8, description="Fewest of eight common English words (English wikis only)"
    )
    workers: Annotated[int | None, Runtime] = Field(
        None, ge=1, description="Processes; all the machine's cores where left out"
    )


def _label(config: CleanConfig, inputs: list[str]) -> str:
    return inputs[0]


def check(out: Path, metrics: dict[str, Any]) -> None:
    """Every page is accounted for, and there is at least one article.

    Raises:
        ProofError: the counts do not add up, or nothing was left.
    """
    counts = json.loads((out / "counts.json").read_text(encoding="utf-8"))
    parts = {
        **{name: counts[name] for name in ("articles", "redirects", "other_namespaces")},
        **{name: counts[name] for name in ("other_models", "empty")},
        **counts["filtered"],
        "set_aside": len(counts["set_aside"]),
    }
    if sum(parts.values()) != counts["pages"]:
        raise ProofError(
            "The counts of pages do not add up", where=out, expected=counts["pages"], got=parts
        )
    if counts["articles"] == 0:
        raise ProofError(
            "No article was left", where=out, expected="at least one article", got=parts,
            fix="lower the thresholds of the filters, or name another dump",
        )  # fmt: skip


@stage("clean", version=1, output=CleanCorpus, label=_label, check=check)
def clean(config: CleanConfig, ctx: Context, corpus: RawCorpus) -> dict[str, Any]:
    """Turn a dump's articles into documents: markup to text, repair, filters, shards."""
    names = set(Thresholds.__dataclass_fields__)
    counts = write_shards(
        corpus.files,
        ctx.out,
        Rules(Thresholds(**config.model_dump(include=names)), config.repair),
        on_damage=config.on_damage,
        shard_bytes=config.shard_mib << 20,
        workers=config.workers or os.cpu_count() or 1,
        progress=ctx.progress,
    ).as_json()
    text = json.dumps(counts, indent=1, ensure_ascii=False)
    (ctx.out / "counts.json").write_text(text + "\n", encoding="utf-8")
    most_frequent = dict(list(counts["templates"].items())[:10])
    return {**counts, "set_aside": len(counts["set_aside"]), "templates": most_frequent}
