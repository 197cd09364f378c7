"""clean: a MediaWiki dump to documents as JSON lines, with counts of all that was dropped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tasks.clean.documents import Rules, write_shards
from tasks.clean.filters import Thresholds
from tasks.core.artifacts import CleanCorpus, RawCorpus
from tasks.core.errors import ProofError
from tasks.core.fingerprint import Runtime
from tasks.core.stage import Context, stage


class CleanConfig(Thresholds):
    """What becomes of wiki markup, and which documents stay."""

    repair: bool = Field(True, description="Repair mojibake and other broken text with ftfy")
    on_damage: Literal["error", "keep"] = Field(
        "error", description="A dump that ends early: stop, or keep the pages before the damage"
    )
    shard_mib: int = Field(64, ge=1, description="A shard ends when it has reached this size")
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
    counts = write_shards(
        corpus.files,
        ctx.out,
        Rules(config, config.repair),
        on_damage=config.on_damage,
        shard_bytes=config.shard_mib << 20,
        workers=config.workers or os.cpu_count() or 1,
        progress=ctx.progress,
    ).as_json()
    text = json.dumps(counts, indent=1, ensure_ascii=False)
    (ctx.out / "counts.json").write_text(text + "\n", encoding="utf-8")
    most_frequent = dict(list(counts["templates"].items())[:10])
    return {**counts, "set_aside": len(counts["set_aside"]), "templates": most_frequent}
