"""ingest: source files as they came, copied into the store with size and digest."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from megatron_bridge.sources.address import malformed
from tasks.core import sources
from tasks.core.artifacts import RawCorpus
from tasks.core.errors import ConfigError
from tasks.core.fingerprint import DigestCache, Runtime
from tasks.core.provenance import without_secrets
from tasks.core.stage import Context, stage
from tasks.ingest.fetching import changed, fetch
from tasks.ingest.kinds import refuse_content
from tasks.ingest.listing import Entry, Listing, listed, name_of

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def _some(value: Any) -> Any:
    given = value if isinstance(value, list | tuple) else [value]
    if given and all(isinstance(one, str) and one for one in given):
        return value
    raise PydanticCustomError("sources", "a path, a URL, or a list of these")


class IngestConfig(BaseModel):
    """Which corpus to take in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Annotated[str | tuple[str, ...], BeforeValidator(_some), Runtime] = Field(
        description="MediaWiki XML dumps, JSON lines, Parquet, text: a path, folder or pattern "
        "(data/**/*.jsonl.gz), file:///path, package://PACKAGE/inner/path, https://, oss:// or "
        "another URL that fsspec knows; or a list of these. ${NAME} in it stands for a variable of "
        "the environment"
    )
    sha256: Annotated[str | None, Runtime] = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="The digest that the source, one file, must have",
    )

    @model_validator(mode="after")
    def _keeps_no_secret(self) -> IngestConfig:
        # A recipe is read by many, and Prefect's server keeps what a run was asked for.
        for source in self._given:
            try:
                password = urlsplit(source).password if "://" in source else None
            except ValueError:
                # What would be told of it quotes the source.
                raise malformed().at("ingest.source") from None
            if password and not _VARIABLE.fullmatch(password):
                raise ConfigError(
                    "A source has a password in it", where="ingest.source",
                    expected="a URL without secrets", got=_without_user(source),
                    fix="write ${NAME} in its place, and set NAME in the environment",
                )  # fmt: skip
        return self

    @property
    def _given(self) -> tuple[str, ...]:
        return (self.source,) if isinstance(self.source, str) else self.source

    @property
    def sources(self) -> tuple[str, ...]:
        """All of them, in order, with variables of the environment filled in.

        Raises:
            ConfigError: a variable is not set.
        """
        return tuple(_VARIABLE.sub(_from_environment, source) for source in self._given)


def _without_user(source: str) -> str:
    scheme, _, rest = source.partition("://")
    return f"{scheme}://***@{rest.rpartition('@')[2]}".partition("?")[0]


def _from_environment(found: re.Match[str]) -> str:
    value = os.environ.get(found[1])
    if not value:
        raise ConfigError(
            "A source names a variable that is not set", where="ingest.source",
            expected=f"{found[1]} in the environment", got="nothing",
            fix=f"export {found[1]}=…, where the stage runs",
        )  # fmt: skip
    before, behind = found.string[: found.start()], found.string[found.end() :]
    _, url, place = before.partition("://")
    is_user = url and "/" not in place and "@" in behind.partition("/")[0]
    return quote(value, safe="") if is_user else value


def _label(config: IngestConfig, inputs: list[str]) -> str:
    first, *more = config.sources
    return f"{name_of(first)}-and-{len(more)}-more" if more else name_of(first)


def _resolve(config: IngestConfig, digests: DigestCache) -> dict[str, Any]:
    """The files by what they hold: one as a table, several as a list."""
    files = listed(config.sources).files
    if config.sha256 and len(files) > 1:
        raise ConfigError(
            "A digest is asked of several files", where="ingest.sha256", expected="one file",
            got=f"{len(files)} files", fix="leave ingest.sha256 out, or name one file",
        )  # fmt: skip
    here = [entry.place for entry in files if isinstance(entry.place, Path)]
    for entry in files:
        if isinstance(entry.place, Path):
            refuse_content(entry.place, entry.shown)
    known = iter(digests.sha256_of(here))
    found = [
        {"name": entry.name, "bytes": entry.bytes, **_value(entry, known, config.sha256)}
        for entry in files
    ]
    return {"source": found[0] if len(found) == 1 else found}


def _value(entry: Entry, digests: Iterator[str], sha256: str | None) -> dict[str, str]:
    if isinstance(entry.place, Path):
        found = next(digests)
        # Also asked here: a sealed copy is reused without being fetched again.
        sources.require_digest(entry.shown, sha256, found)
        return {"sha256": found}
    if sha256:
        return {"sha256": sha256}
    if not entry.state:
        raise ConfigError(
            "Nobody tells whether the source is the same another time", where=entry.shown,
            expected="an ETag, a checksum or a date", got="a size at most",
            fix="name the digest of this one file: ingest.sha256=…",
        )  # fmt: skip
    return {"state": entry.state}


@stage("ingest", version=1, output=RawCorpus, label=_label, resolve=_resolve)
def ingest(config: IngestConfig, ctx: Context) -> dict[str, Any]:
    """Copy the sources as they came, and check the copies' digests."""
    planned = ctx.identity["source"]
    known = {file["name"]: file for file in (planned if isinstance(planned, list) else [planned])}
    listing = listed(config.sources)
    _require_same(listing, known)
    total = sum(entry.bytes or 0 for entry in listing.files)
    done, kinds, fetched = 0, Counter[str](), {}
    for entry in listing.files:

        def told(size: int, *_: Any, before: int = done, name: str = entry.name, **__: Any) -> None:
            ctx.progress(before + size, total, unit="bytes", note=name)

        dest = ctx.out / entry.name
        dest.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry.place, Path):
            found = sources.copy(entry.place, dest, told)
        else:
            found = fetched[entry.name] = fetch(entry, entry.place, dest, ctx.scratch, told)
            sources.require_digest(entry.shown, config.sha256, found)
        if found != known[entry.name].get("sha256", found):
            raise changed(entry.shown, "other bytes")
        refuse_content(dest, entry.shown)
        kinds[sources.compression(dest)] += 1
        done += dest.stat().st_size
    if fetched:
        # What was read over hours is what lies there now, or it may be a mixture.
        _require_same(listed(config.sources), known)
    return {
        "sources": without_secrets(list(config._given)),
        "bytes": done,
        **_told(kinds),
        **({"skipped": dict(listing.skipped)} if listing.skipped else {}),
        **({"fetched": fetched} if fetched else {}),
    }


def _told(kinds: Counter[str]) -> dict[str, Any]:
    if kinds.total() > 1:
        return {"files": kinds.total(), "compression": dict(kinds)}
    return {"compression": next(iter(kinds))}


def _require_same(listing: Listing, known: dict[str, dict[str, Any]]) -> None:
    """Refuse files that are not those of the plan.

    Raises:
        InputError: one is new, gone or another.
    """
    now = {entry.name: entry for entry in listing.files}
    for name in sorted(now.keys() ^ known.keys()):
        raise changed(now[name].shown if name in now else name, "new" if name in now else "gone")
    for name, entry in now.items():
        state = known[name].get("state", entry.state)
        if (entry.bytes, entry.state) != (known[name]["bytes"], state):
            raise changed(entry.shown, "another size, ETag or date")
