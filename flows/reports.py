"""What people see of a run: Prefect tables and progress, one line a stage, a summary at the end."""

from __future__ import annotations

import contextvars
import logging
from typing import Any

from flows import pictures
from megatron_bridge.data import blend
from megatron_bridge.resume import LOG, read_lines
from tasks.core.artifacts import Artifact, EvalReport
from tasks.core.errors import PipelineError, refused
from tasks.core.progress import Listener
from tasks.core.stage import Outcome
from tasks.evaluate.report import lm_eval_lines

_log = logging.getLogger(__name__)

Row = dict[str, Any]

REPORT = "report.md"


def listener(stage: str) -> Listener:
    """What keeps a Prefect progress artifact of the running task up to date."""
    from prefect.artifacts import create_progress_artifact, update_progress_artifact

    # A stage may report from a thread of its own, which does not know the task run.
    context = contextvars.copy_context()
    made: list[Any] = []

    def tell(fraction: float, text: str) -> None:
        percent = round(100 * fraction, 1)
        if made:
            context.run(update_progress_artifact, made[0], progress=percent, description=text)
        else:
            key = f"{_key(stage)}-progress"
            made.append(context.run(create_progress_artifact, percent, key=key, description=text))

    return _until_it_fails(tell)


def sealed(outcome: Outcome) -> None:
    """Show an output on its task run: metrics as a table, a training log as a picture, an
    evaluation as the text of its report.
    """
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    artifact = outcome.artifact
    stage = _key(artifact.record.stage)
    create_table_artifact(
        table=[{"metric": key, "value": str(value)} for key, value in artifact.metrics.items()],
        key=f"{stage}-metrics",
        description=f"{outcome.state}: `{artifact.path}`",
    )
    listed = {entry.path for entry in artifact.record.files}
    if LOG in listed:
        drawn = pictures.data_url(pictures.sheet(read_lines(artifact.data / LOG)))
        # An image artifact would show as well, with the whole URL as text across the page.
        create_markdown_artifact(f"![The training run]({drawn})", key=f"{stage}-picture")
    if isinstance(artifact, EvalReport) and REPORT in listed:
        text = (artifact.data / REPORT).read_text(encoding="utf-8")
        create_markdown_artifact(text, key=f"{stage}-report")


def row(stage: str, future: Any) -> Row:
    """Wait for a stage's future and say what became of it.

    Returns:
        `stage`, `state` (Built, Reused, Failed, NotReached), `path`, `seconds`, `metrics`; with
        `error` and `exit_code` where it failed.
    """
    future.wait()
    state = future.state
    if state.is_completed():
        artifact = future.result()
        if state.name == "Reused":
            return reused(stage, artifact)
        return reused(stage, artifact) | {"state": "Built", "seconds": artifact.record.seconds}
    if not state.is_final():
        return not_reached(stage)
    return not_reached(stage) | {"state": "Failed"} | _failure(state)


def reused(stage: str, artifact: Artifact | None) -> Row:
    """The row of a stage that took what was sealed, or of one that was not asked for."""
    if artifact is None:
        return not_reached(stage)
    return {
        "stage": stage,
        "state": "Reused",
        "path": str(artifact.path),
        "seconds": 0.0,
        "metrics": artifact.metrics,
    }


def not_reached(stage: str) -> Row:
    """The row of a stage that did not run."""
    return {"stage": stage, "state": "NotReached", "path": None, "seconds": 0.0, "metrics": {}}


def line(row: Row) -> str:
    """A row as one line of text."""
    return (
        f"{row['stage']:<13}{row['state']:<11}{row['seconds']:8.1f} s  {row['path'] or ''}".rstrip()
    )


def told(row: Row) -> Row:
    """The row itself, after its line went to the log; stages that did not run stay silent."""
    if row["state"] != "NotReached":
        _log.info("%s", line(row))
    return row


def samples(rows: list[Row]) -> None:
    """Show, before training, what it takes of each dataset: in the log and on its task run."""
    from prefect.artifacts import create_table_artifact

    for text in blend.lines(rows):
        _log.info("%s", text)
    create_table_artifact(table=rows, key="train-samples", description="samples of each source")


def overview(rows: list[Row]) -> None:
    """Show all stages as one Prefect table of the flow run."""
    from prefect.artifacts import create_table_artifact

    shown = ("stage", "state", "seconds", "path", "error")
    create_table_artifact(
        table=[{key: str(row.get(key, "")) for key in shown} for row in rows], key="line"
    )


def summary(rows: list[Row]) -> list[str]:
    """What the run proved, in a few lines: perplexity, loss pairs, served tokens."""
    metrics = {row["stage"]: row["metrics"] for row in rows}
    evaluated, exported = metrics.get("evaluate", {}), metrics.get("export", {})
    lines = []
    if "perplexity_before" in evaluated:
        before, after = evaluated["perplexity_before"], evaluated["perplexity_after"]
        lines.append(
            f"held-out perplexity  {before:.4f} -> {after:.4f}  ({after / before - 1:+.2%}, "
            f"{evaluated.get('eval_tokens', 0):,} tokens)"
        )
    for when in ("before", "after"):
        if f"loss_hf_{when}" in evaluated:
            ours, theirs = evaluated[f"loss_megatron_{when}"], evaluated[f"loss_hf_{when}"]
            lines.append(
                f"loss {when:<6} training  Hugging Face {theirs:.6f}  Megatron {ours:.6f}  "
                f"difference {abs(ours - theirs):.1e}"
            )
    lines += lm_eval_lines(evaluated)
    if "served_text" in exported:
        columns = ("served_tokens", "megatron_tokens", "served_text", "megatron_text", "compared")
        for ids, own_ids, text, own_text, how in zip(
            *(exported[name] for name in columns), strict=True
        ):
            lines.append(f"served tokens    {ids or '(only their text can be read back)'} {text!r}")
            lines.append(f"Megatron tokens  {own_ids} {own_text!r}  equal by {how}")
    return lines


def _failure(state: Any) -> Row:
    from prefect.states import get_state_exception

    error: Any = get_state_exception(state)
    if isinstance(error, PipelineError):
        return {"error": str(error), "exit_code": error.exit_code}
    if isinstance(error, OSError):
        return {"error": str(refused(error)), "exit_code": 3}
    _log.error("an error that the program did not foresee", exc_info=error)
    return {"error": f"{type(error).__name__}: {error}", "exit_code": 3}


def _until_it_fails(tell: Listener) -> Listener:
    """A server that went away must not end a stage that works: tell once, then keep quiet."""
    broken: list[Exception] = []

    def careful(fraction: float, text: str) -> None:
        if not broken:
            try:
                tell(fraction, text)
            except Exception as error:
                broken.append(error)
                _log.warning("no more progress is sent to Prefect: %s", error)

    return careful


def _key(stage: str) -> str:
    # Prefect allows lower-case letters, digits and dashes.
    return stage.replace("_", "-")
