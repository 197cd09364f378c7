"""ingest: source files as they came, copied into the store with size and digest."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tasks.core import sources
from tasks.core.artifacts import RawCorpus
from tasks.core.errors import InputError
from tasks.core.fingerprint import DigestCache, Runtime
from tasks.core.stage import Context, stage

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class IngestConfig(BaseModel):
    """Which corpus to take in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Annotated[str, Runtime] = Field(
        description="MediaWiki XML dump: a path, file:///path, or package://PACKAGE/inner/path"
    )
    sha256: Annotated[str | None, Runtime] = Field(
        None, pattern="^[0-9a-f]{64}$", description="The digest that the source must have"
    )


def _label(config: IngestConfig, inputs: list[str]) -> str:
    return Path(config.source).name.split(".")[0]


def _resolve(config: IngestConfig, digests: DigestCache) -> dict[str, Any]:
    source = sources.describe(config.source, digests)
    # Also asked here: a sealed copy is reused without being fetched again.
    sources.require_digest(config.source, config.sha256, source.sha256)
    return {"source": source.identity()}


@stage("ingest", version=1, output=RawCorpus, label=_label, resolve=_resolve)
def ingest(config: IngestConfig, ctx: Context) -> dict[str, Any]:
    """Copy the source as it came, and check the copy's digest."""
    path = sources.locate(config.source)
    check_kind(path)
    sources.fetch(config.source, ctx.out / path.name, ctx.progress, config.sha256)
    return {"bytes": path.stat().st_size, "compression": sources.compression(path)}


def check_kind(path: Path) -> None:
    """Refuse what can be no XML dump, told by its first bytes.

    Raises:
        InputError: neither bz2, gz, xz, zst nor plain XML.
    """
    with open(path, "rb") as file:
        head = file.read(64)
    text = head.decode("utf-16" if head.startswith(_UTF16) else "utf-8-sig", "replace")
    if sources.compression(path) == "none" and not text.lstrip().startswith("<"):
        raise InputError(
            "The source is of an unknown kind", where=path,
            expected="a MediaWiki XML dump, plain or compressed with bz2, gz, xz or zst",
            got=f"a file that begins with {head[:16]!r}",
            fix="name a pages-articles dump",
        )  # fmt: skip
