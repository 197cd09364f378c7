"""`@stage`: reuse, lease, build, check, seal. The one file of `tasks/` that imports Prefect."""

from __future__ import annotations

import errno
import functools
import inspect
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, get_type_hints

from pydantic import BaseModel

from tasks.core.artifacts import Artifact
from tasks.core.errors import ConfigError, ProofError, RetryableError, disk_is_full, is_retryable
from tasks.core.fingerprint import DigestCache, digest, identity, stable
from tasks.core.lease import Lease
from tasks.core.progress import Listener, Progress
from tasks.core.provenance import provenance
from tasks.core.record import InputEntry, Record
from tasks.core.store import Address, Store, list_files

Metrics = dict[str, Any]
State = Literal["Built", "Reused"]

RETRY_DELAYS_SECONDS = [1, 5]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Context:
    """What a stage function gets beside its config and its inputs.

    Attributes:
        out: empty at the start of each attempt; becomes the output's `data/`.
        scratch: survives failed and killed attempts, for resume points; gone after sealing.
        progress: call it as `progress(done, total, unit="pages", note="")`.
        identity: what the fingerprint was made from: the config, and the sources by value.
    """

    out: Path
    scratch: Path
    progress: Callable[..., None]
    identity: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What became of a stage: its output, whether it was built now, and the seconds it took."""

    state: State
    artifact: Artifact
    seconds: float


class Watcher(Protocol):
    """Who shows a running task to people."""

    def listener(self, stage: str) -> Listener:
        """What to tell the progress of a stage to; called inside its task run."""

    def sealed(self, outcome: Outcome) -> None:
        """Called inside the task run when its output is there."""


@dataclass(frozen=True)
class Stage:
    """A pure function with what the store needs to know about it; made by `@stage`."""

    name: str
    version: int
    function: Callable[..., Metrics]
    config_type: type[BaseModel]
    inputs: Mapping[str, type[Artifact]]
    output: type[Artifact]
    label: Callable[[Any, list[str]], str]
    resolve: Callable[[Any, DigestCache], Metrics] | None = None
    check: Callable[[Path, Metrics], None] | None = None
    still_valid: Callable[[Any], bool] | None = None

    def __call__(self, config: BaseModel, ctx: Context, **inputs: Artifact) -> Metrics:
        """Run the bare function: no store, no record."""
        return self.function(config, ctx, **inputs)

    def fingerprint(
        self, config: BaseModel, input_fingerprints: Sequence[str], digests: DigestCache
    ) -> str:
        """12 hexadecimal digits over stage, version, what bears on the bytes, and the inputs."""
        return digest(self._identity(config, input_fingerprints, digests))

    def address(
        self,
        config: BaseModel,
        inputs: Mapping[str, Artifact | Address],
        digests: DigestCache,
    ) -> Address:
        """Where the output belongs. Inputs may be planned (`Address`) or sealed (`Artifact`)."""
        entries = tuple(self._entry(name, inputs) for name in self.inputs)
        hashed = self._identity(config, [entry.fingerprint for entry in entries], digests)
        label = self.label(config, [entry.label for entry in entries])
        return Address(self.name, self.version, _path_part(label), digest(hashed), hashed, entries)

    def find(self, store: Store, address: Address) -> Artifact | None:
        """The sealed output, if it is there, cheaply valid, and still true of the world."""
        artifact = store.find(address, self.output)
        if artifact is None or (self.still_valid and not self.still_valid(artifact)):
            return None
        return artifact

    def build(
        self,
        store: Store,
        config: BaseModel,
        inputs: Mapping[str, Artifact] | None = None,
        force: bool = False,
        listener: Listener | None = None,
        **runs: str,
    ) -> Outcome:
        """Reuse the sealed output, or build it under the lease. Pure Python, no Prefect.

        Args:
            store: where to look and to build.
            config: the stage's config.
            inputs: sealed outputs by parameter name.
            force: build anew; the sealed output stays until the new one is complete.
            listener: told the progress, at most twice a second.
            runs: ids for the record's provenance.

        Raises:
            PipelineError: whatever the stage raises; `RetryableError` for a full disk.
        """
        started = time.monotonic()
        inputs = inputs or {}
        address = self.address(config, inputs, store.digests)
        artifact = None if force else self.find(store, address)
        if artifact is None or store.unfinished(address):
            with store.lease(address) as lease:
                artifact = None if force else self.find(store, address)
                if artifact is None:
                    artifact = self._build(store, address, config, inputs, lease, listener, runs)
                    return Outcome("Built", artifact, time.monotonic() - started)
                store.clean(address)
        return Outcome("Reused", artifact, time.monotonic() - started)

    def submit(
        self,
        store: Store,
        config: BaseModel,
        force: bool = False,
        watcher: Watcher | None = None,
        admit: Callable[[Mapping[str, Artifact]], None] | None = None,
        **inputs: Any,
    ) -> Any:
        """Run the stage as a Prefect task; inputs are futures or artifacts. Returns a future.

        `admit` is asked of the inputs before anything is built, and raises what speaks against it.
        """
        from prefect import task
        from prefect.cache_policies import NO_CACHE
        from prefect.runtime import flow_run, task_run
        from prefect.states import Completed

        @task(
            name=self.name,
            task_run_name=self.name,
            description=inspect.getdoc(self.function),
            retries=len(RETRY_DELAYS_SECONDS),
            retry_delay_seconds=list(RETRY_DELAYS_SECONDS),
            retry_condition_fn=_may_retry,
            cache_policy=NO_CACHE,
            persist_result=False,
        )
        def run(inputs: dict[str, Artifact]) -> Any:
            runs = {"flow_run_id": str(flow_run.id), "task_run_id": str(task_run.id)}
            if admit:
                admit(inputs)
            listener = watcher.listener(self.name) if watcher else None
            outcome = self.build(store, config, inputs, force, listener, **runs)
            if watcher:
                watcher.sealed(outcome)
            if outcome.state == "Reused":
                return Completed(name="Reused", data=outcome.artifact)
            return outcome.artifact

        return run.submit(inputs)

    def _build(
        self,
        store: Store,
        address: Address,
        config: BaseModel,
        inputs: Mapping[str, Artifact],
        lease: Lease,
        listener: Listener | None,
        runs: Mapping[str, str],
    ) -> Artifact:
        started = time.monotonic()
        progress = Progress(self.name, listener)
        work = store.work(address)
        try:
            store.open_work(address)
            ctx = Context(work.out, work.scratch, progress, address.identity["identity"])
            metrics = self.function(config, ctx, **inputs)
            metrics = _json_metrics(self.name, metrics)
            if self.check:
                self.check(work.out, metrics)
            files = list_files(work.out, functools.partial(progress, unit="bytes", note="hashing"))
            seconds = round(time.monotonic() - started, 3)
            record = Record(
                schema=1, stage=address.stage, version=address.version, label=address.label,
                fingerprint=address.fingerprint, identity=address.identity,
                inputs=list(address.inputs), files=files, metrics=metrics,
                provenance=provenance(**runs), created_at=datetime.now(UTC), seconds=seconds,
            )  # fmt: skip
            store.seal(address, work, files, record, lease)
        except Exception as error:
            if lease.is_ours():
                store.drop_out(address)
            if not disk_is_full(error):
                raise
            raise RetryableError(
                "The disk is full", where=work.folder, expected="room for the output",
                got=os.strerror(errno.ENOSPC),
                fix="free some space and run again; what is sealed will be reused",
            ) from error  # fmt: skip
        finally:
            progress.close()
        return self.output(path=store.path(address), record=record)

    def _identity(
        self, config: BaseModel, input_fingerprints: Sequence[str], digests: DigestCache
    ) -> dict[str, Any]:
        by_value = self.resolve(config, digests) if self.resolve else {}
        return {
            "stage": self.name,
            "version": self.version,
            "identity": {**identity(config), **stable(by_value)},
            "inputs": list(input_fingerprints),
        }

    def _entry(self, name: str, inputs: Mapping[str, Artifact | Address]) -> InputEntry:
        if name not in inputs:
            raise ConfigError(
                f"{self.name} lacks an input", where=name, expected=self.inputs[name].__name__,
                got="nothing", fix="pass the sealed output of the stage before",
            )  # fmt: skip
        given = inputs[name]
        stage = given.record.stage if isinstance(given, Artifact) else given.stage
        return InputEntry(name=name, stage=stage, label=given.label, fingerprint=given.fingerprint)


def stage(
    name: str,
    *,
    version: int,
    output: type[Artifact],
    label: Callable[[Any, list[str]], str],
    resolve: Callable[[Any, DigestCache], Metrics] | None = None,
    check: Callable[[Path, Metrics], None] | None = None,
    still_valid: Callable[[Any], bool] | None = None,
) -> Callable[[Callable[..., Metrics]], Stage]:
    """Make a stage of a function `(config, ctx, **inputs) -> metrics`.

    Args:
        name: the folder in the store and the name on the command line.
        version: raised by hand when the same config must give other bytes.
        output: what the stage makes.
        label: `(config, input_labels)` to the readable part of the path.
        resolve: `(config, digests)` to what a source is by value (name, size, digest).
        check: `(out, metrics)`; raises `ProofError` when an invariant does not hold.
        still_valid: asked of a sealed output before it is reused; for outputs that live elsewhere.
    """

    def make(function: Callable[..., Metrics]) -> Stage:
        hints = get_type_hints(function)
        names = list(inspect.signature(function).parameters)
        return Stage(
            name, version, function, hints[names[0]], {key: hints[key] for key in names[2:]},
            output, label, resolve, check, still_valid,
        )  # fmt: skip

    return make


def _may_retry(task: Any, task_run: Any, state: Any) -> bool:
    from prefect.states import get_state_exception

    error = get_state_exception(state)
    return is_retryable(error) if isinstance(error, BaseException) else False


def _path_part(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")[:100] or "unnamed"


def _json_metrics(name: str, metrics: Metrics) -> Metrics:
    try:
        return dict(stable(metrics, "metrics"))
    except ConfigError as error:
        raise ProofError(
            f"{name} measured something that is no finite JSON value: {error}"
        ) from error
