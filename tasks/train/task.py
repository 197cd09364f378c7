"""Continued pretraining: a checkpoint and tokens in, a checkpoint out."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from megatron_bridge.config import TrainConfig, TrainSpec
from tasks.core.artifacts import MegatronCheckpoint, TokenDataset
from tasks.core.errors import InputError, ProofError
from tasks.core.fingerprint import DigestCache, Runtime
from tasks.core.stage import Context, stage
from tasks.core.store import link_or_copy
from tasks.core.tokenizer_files import require_same
from tasks.train import blend
from tasks.train.blend import Portion

_EVENTS = "tensorboard"

_log = logging.getLogger(__name__)


class TrainStage(TrainConfig):
    """A training run, and how it is run here."""

    prefix: ClassVar[str] = "train."

    # Where a dataset lies bears on nothing; which one it is, does: see `_resolve`.
    blend: Annotated[tuple[Portion, ...], Runtime] = Field(
        (), description="Token datasets to draw from, by weight; without it the line's own"
    )
    launcher: Annotated[Literal["local"], Runtime] = Field(
        "local", description="Who starts the ranks: torchrun on this machine"
    )
    checkpoint_every: Annotated[int, Runtime] = Field(
        4, ge=1, description="Steps between resume points"
    )
    checkpoints_kept: Annotated[int, Runtime] = Field(
        2, ge=1, description="Resume points kept during the run"
    )
    # It changes no byte: a checkpoint without proof says so however it was admitted.
    unproven: Annotated[bool, Runtime] = Field(
        False, description="Train a start whose certificate is missing or does not hold"
    )


def _label(config: TrainStage, inputs: list[str]) -> str:
    return f"{inputs[0]}-{config.steps}steps-lr{config.learning_rate:g}"


def _resolve(config: TrainStage, digests: DigestCache) -> dict[str, Any]:
    return blend.identity(config.blend)


def _check(out: Path, metrics: dict[str, Any]) -> None:
    """The loss is a number, every step is logged once, and the checkpoint is whole."""
    from megatron_bridge import checkpoint, resume

    info = checkpoint.read_info(out / "checkpoint")
    wanted = list(range(1, info.iteration + 1))
    for name in (resume.LOG, resume.LEDGER):
        steps = [line["step"] for line in resume.read_lines(out / name)]
        if steps != wanted or info.iteration != metrics["steps"]:
            raise ProofError(
                "Steps are missing or told twice",
                where=out / name,
                expected=f"one line for each of the steps 1 to {info.iteration}",
                got=f"{len(steps)} lines, {metrics['steps']} steps in the metrics",
            )
    if not math.isfinite(metrics["loss_last"]):
        raise ProofError("The loss is not finite", where=out, got=metrics["loss_last"])


@stage("train", version=3, output=MegatronCheckpoint, label=_label, resolve=_resolve, check=_check)
def train(
    config: TrainStage, ctx: Context, start: MegatronCheckpoint, tokens: TokenDataset
) -> dict[str, Any]:
    """Train `start` on training splits; goes on from the newest resume point in `scratch`.

    The samples are indexed here, before any rank starts, in the store: another run of the same
    samples finds them there.
    """
    from megatron_bridge import resume, runs
    from megatron_bridge.launch.local import LocalLauncher
    from tasks.train import events

    spec = TrainSpec(
        config=TrainConfig(**{name: getattr(config, name) for name in TrainConfig.model_fields}),
        checkpoint=start.checkpoint.resolve(),
        train_data=tuple(blend.sources(config.blend, tokens)),
        end_of_document=tokens.metrics["end_of_document"],
        run_dir=ctx.scratch.resolve(),
        # Beside the stages' outputs: {store}/index.
        index_dir=tokens.path.resolve().parents[2] / "index",
        unproven=config.unproven,
    )

    _fits(tokens, start)
    live = events.Live(ctx.scratch / _EVENTS, ctx.scratch / resume.LOG)

    def on_step(line: dict[str, Any]) -> None:
        ctx.progress(line["step"], config.steps, unit="steps", note=f"loss {line['loss']:.4f}")
        live.tell(line)

    ctx.progress(0, config.steps, unit="steps", note="indexing the samples")
    try:
        metrics = runs.train(spec, LocalLauncher(), on_step, _tell)
    finally:
        live.close()
    last = Path(metrics.pop("checkpoint"))
    for path in sorted(p for p in last.rglob("*") if p.is_file()):
        place = ctx.out / "checkpoint" / path.relative_to(last)
        place.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(path, place)
    for name in (resume.LOG, resume.LEDGER, resume.SPEC, resume.SAMPLES):
        link_or_copy(ctx.scratch / name, ctx.out / name)
    events.write(ctx.out / _EVENTS, resume.read_lines(ctx.out / resume.LOG))
    return metrics


def _fits(tokens: TokenDataset, start: MegatronCheckpoint) -> None:
    from megatron_bridge import checkpoint

    expected, got = checkpoint.read_info(start.checkpoint).vocab_size, tokens.metrics["vocab_size"]
    if got != expected:
        raise InputError(
            "The tokens were made for another model", where=tokens.path,
            expected=f"a vocabulary of {expected}, the checkpoint's", got=got,
            fix="run the tokens stage with the model that is trained",
        )  # fmt: skip
    if recorded := tokens.metrics.get("tokenizer_files"):
        require_same(recorded, start.checkpoint / checkpoint.HF_FILES, tokens.data)


def _tell(rows: list[dict[str, Any]]) -> None:
    from megatron_bridge.data.blend import lines

    _log.info("samples to take of each source:\n%s", "\n".join(lines(rows)))
