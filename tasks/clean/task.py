"""clean: dumps and rows to documents as JSON lines, with a report of all that was dropped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tasks.clean.corpus import Run, write_parts
from tasks.clean.pages import Options
from tasks.core import sources
from tasks.core.artifacts import CleanCorpus, RawCorpus
from tasks.core.errors import InputError, ProofError
from tasks.core.executor import Executor
from tasks.core.fingerprint import DigestCache, Runtime, sha256_file
from tasks.core.stage import Context, stage

_TEMPLATES_TOLD = 10


class CleanConfig(Options):
    """What becomes of wiki markup, and which documents stay."""

    on_damage: Literal["error", "keep"] = Field(
        "error",
        description="A file that ends early or is broken: stop, or keep what is whole before that",
    )
    shard_mib: int = Field(64, ge=1, description="A shard ends when it has reached this size")
    workers: Annotated[int | None, Runtime] = Field(
        None, ge=1, description="Processes; all the machine's cores where left out"
    )
    executor: Annotated[Executor, Runtime] = Field(
        Executor(), description="Where the workers are: processes here, or a Dask cluster"
    )


def _label(config: CleanConfig, inputs: list[str]) -> str:
    return inputs[0]


def _resolve(config: CleanConfig, digests: DigestCache) -> dict[str, Any]:
    """The files that the recipe names, by what they hold."""
    return {
        name: [sources.describe(url, digests).identity() for url in urls]
        for name, urls in _files(config).items()
    }


def _files(config: CleanConfig) -> dict[str, list[str]]:
    return {
        "template_table": [config.template_table] if config.template_table else [],
        "evaluation_sets": list(config.evaluation_sets),
    }


def _require_planned(config: CleanConfig, planned: Mapping[str, Any]) -> None:
    """Refuse files that hold something else than what the fingerprint was made from."""
    for name, urls in _files(config).items():
        for url, known in zip(urls, planned[name], strict=True):
            if sha256_file(sources.locate(url)) != known["sha256"]:
                raise InputError(
                    "A file changed after the run was planned", where=url,
                    expected="the same bytes until clean begins", got="other bytes",
                    fix="run again",
                )  # fmt: skip


def check(out: Path, metrics: dict[str, Any]) -> None:
    """Every page is accounted for.

    Raises:
        ProofError: the counts do not add up.
    """
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    parts = report["whereabouts"]
    if sum(parts.values()) != report["pages"]:
        raise ProofError(
            "The counts of pages do not add up", where=out, expected=report["pages"], got=parts
        )


@stage("clean", version=6, output=CleanCorpus, label=_label, resolve=_resolve, check=check)
def clean(config: CleanConfig, ctx: Context, corpus: RawCorpus) -> dict[str, Any]:
    """Turn a corpus into documents: markup to text, rules, filters, duplicates, a report."""
    _require_planned(config, ctx.identity)
    counts = write_parts(
        corpus.data,
        [entry.path for entry in corpus.record.files],
        ctx.out,
        Run(
            config,
            corpus.fingerprint,
            ctx.scratch,
            config.on_damage,
            config.shard_mib << 20,
            config.workers or os.cpu_count() or 1,
            config.executor,
            ctx.progress,
        ),
    )
    report = counts.as_json()
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    # Half a surrogate, which a row may hold, is written as JSON escapes it.
    (ctx.out / "report.json").write_bytes(text.encode("utf-8", "backslashreplace"))
    most = report["templates"]["most"][:_TEMPLATES_TOLD]
    return {
        "pages": counts.pages,
        **{name: count for name, count in report["whereabouts"].items() if count},
        **({"damage": counts.damage} if counts.damage else {}),
        "characters_in": counts.characters_in,
        "characters_out": counts.characters_out,
        "paragraphs": counts.paragraphs,
        "paragraphs_with_residue": counts.paragraphs_with_residue,
        "templates_dropped": report["templates"]["dropped"],
        "templates": {found["name"]: found["times"] for found in most},
    }
