"""The line as a Prefect flow: one task a stage, each started as soon as its inputs are there."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.states import Failed

from flows import preflight, reports
from flows.config import PipelineConfig
from flows.line import line, needed, plan
from tasks.core.stage import Stage
from tasks.core.store import Store


@flow(name="megaline", persist_result=False)
def pipeline(
    config: PipelineConfig,
    root: str | None = None,
    until: str | None = None,
    force: list[str] | None = None,
) -> Any:
    """From raw text to a served model.

    Args:
        config: one table a stage.
        root: the store's folder; `MEGALINE_ROOT` or `.megaline` without it.
        until: the last stage wanted; what it does not stand on is left out.
        force: stages to build anew although they are sealed.

    Returns:
        One row a stage (`flows.reports.row`), inside a Failed state where a stage failed.
    """
    store = Store(root)
    # A deployment's parameters come straight from a form: refuse them before any work.
    plan(config, store, until)
    wanted = needed(config, until)

    def before_training(inputs: Any) -> None:
        preflight.check_held_out(config, inputs["tokens"], wanted)
        reports.samples(preflight.samples_by_source(config, inputs["tokens"], wanted))

    admit = {"train": before_training}
    futures: dict[str, Any] = {}

    def submit(stage: Stage, stage_config: Any, **inputs: Any) -> Any:
        futures[stage.name] = stage.name in wanted and stage.submit(
            store, stage_config, stage.name in (force or []), reports, admit.get(stage.name),
            **inputs,
        )  # fmt: skip
        return futures[stage.name]

    line(config, submit)
    rows = [
        reports.told(reports.row(name, future)) if future else reports.not_reached(name)
        for name, future in futures.items()
    ]
    reports.overview(rows)
    failed = [row["stage"] for row in rows if row["state"] == "Failed"]
    return Failed(message=f"failed: {', '.join(failed)}", data=rows) if failed else rows
