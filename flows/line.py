"""The line: which stage takes what from which. Read by the flow and by `plan` alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flows import preflight
from flows.config import PipelineConfig
from tasks.clean.task import clean
from tasks.convert.task import to_hf, to_megatron
from tasks.core.artifacts import Artifact
from tasks.core.errors import ConfigError
from tasks.core.stage import Stage
from tasks.core.store import Address, Store
from tasks.evaluate.task import evaluate
from tasks.export.task import export
from tasks.ingest.task import ingest
from tasks.model.task import model
from tasks.tokens.task import tokens
from tasks.train.task import train

Submit = Callable[..., Any]


@dataclass(frozen=True)
class Planned:
    """Where a stage's output belongs, and the sealed output where there is one."""

    address: Address
    artifact: Artifact | None


def line(config: PipelineConfig, submit: Submit) -> None:
    """Call `submit(stage, config, **inputs)` for each stage; what it returns is later an input."""
    raw = submit(ingest, config.ingest)
    cleaned = submit(clean, config.clean, corpus=raw)
    start_model = submit(model, config.model)
    data = submit(tokens, config.tokens, corpus=cleaned, model=start_model)
    start = submit(to_megatron, config.to_megatron, model=start_model)
    trained = submit(train, config.train, start=start, tokens=data)
    exported = submit(to_hf, config.to_hf, trained=trained)
    report = submit(
        evaluate,
        config.evaluate,
        tokens=data,
        start_model=start_model,
        start=start,
        trained=trained,
        exported=exported,
    )
    submit(export, config.export, exported=exported, trained=trained, report=report)


def plan(config: PipelineConfig, store: Store, until: str | None = None) -> dict[str, Planned]:
    """The address by name of each stage that `until` stands on, and what is sealed of it.

    No work is done, and nothing is asked of what the other stages would read.

    Raises:
        ConfigError: a layout or a length does not fit the model.
        InputError: a source is missing, or its configuration cannot be read.
        ProofError: the text that is kept from training is too short to measure on.
    """
    planned: dict[str, Planned] = {}
    wanted = needed(config, until)

    def submit(stage: Stage, stage_config: Any, **inputs: Address) -> Address | None:
        if stage.name not in wanted:
            return None
        address = stage.address(stage_config, inputs, store.digests)
        planned[stage.name] = Planned(address, stage.find(store, address))
        return address

    line(config, submit)
    sealed = {name: found.artifact for name, found in planned.items() if found.artifact}
    preflight.check(config, sealed, wanted)
    return planned


def needed(config: PipelineConfig, until: str | None = None) -> list[str]:
    """The stages to run for `until`: itself and all that it stands on; without it, every stage.

    Raises:
        ConfigError: there is no such stage.
    """
    wants: dict[str, set[str]] = {}

    def submit(stage: Stage, _: Any, **inputs: str) -> str:
        wants[stage.name] = {stage.name}.union(*(wants[name] for name in inputs.values()))
        return stage.name

    line(config, submit)
    if until is None:
        return list(wants)
    if until not in wants:
        raise ConfigError(
            "There is no such stage", where="--until", expected=", ".join(wants), got=until
        )
    return [name for name in wants if name in wants[until]]
