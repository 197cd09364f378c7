"""evaluate: loss on held-out text before and after training, in Hugging Face and in Megatron.

And lm-eval's tasks, where the recipe names some.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.core.artifacts import EvalReport, HFModel, MegatronCheckpoint, TokenDataset
from tasks.core.errors import ConfigError, ProofError
from tasks.core.fingerprint import DigestCache, Runtime
from tasks.core.stage import Context, stage


class EvaluateConfig(BaseModel):
    """What is measured, and what must hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sequence_length: int = Field(512, ge=2, description="Tokens a window")
    max_tokens: int = Field(8192, ge=1, description="Predicted tokens, at most")
    min_tokens: int = Field(4096, ge=1, description="Fewer held-out tokens fail the stage")
    max_loss_gap: float = Field(
        1e-5, ge=0, description="Hugging Face's and Megatron's mean loss may differ by this"
    )
    max_perplexity_ratio: float | None = Field(
        None, gt=0, description="Perplexity after / before must not be larger"
    )
    # Both enter the fingerprint by `_resolve`: tasks by what they hold, the limit if there are any.
    lm_eval_tasks: Annotated[tuple[str, ...], Runtime] = Field(
        (), description="lm-eval task files (YAML) such as ../lm_eval/hellaswag.yaml"
    )
    lm_eval_limit: Annotated[int, Runtime] = Field(
        25, ge=1, description="Items of each lm-eval task, the first ones"
    )

    @model_validator(mode="after")
    def _measures_enough(self) -> EvaluateConfig:
        if self.max_tokens < self.min_tokens:
            raise ConfigError(
                "No evaluation can be long enough", where="evaluate.max_tokens",
                expected=f"at least evaluate.min_tokens = {self.min_tokens}", got=self.max_tokens,
                fix="raise evaluate.max_tokens or lower evaluate.min_tokens",
            )  # fmt: skip
        return self


def _label(config: EvaluateConfig, inputs: list[str]) -> str:
    return inputs[-1]


def _resolve(config: EvaluateConfig, digests: DigestCache) -> dict[str, Any]:
    if not config.lm_eval_tasks:
        return {}
    from tasks.evaluate import harness

    tasks = [task.identity(digests) for task in harness.read(config.lm_eval_tasks)]
    return {"lm_eval": {"limit": config.lm_eval_limit, "tasks": tasks}}


@stage("evaluate", version=1, output=EvalReport, label=_label, resolve=_resolve)
def evaluate(
    config: EvaluateConfig,
    ctx: Context,
    tokens: TokenDataset,
    start_model: HFModel,
    start: MegatronCheckpoint,
    trained: MegatronCheckpoint,
    exported: HFModel,
) -> dict[str, Any]:
    """Write report.json and report.md; fails where a gate does not hold."""
    from tasks.evaluate import harness, heldout, report

    if config.lm_eval_tasks:
        harness.require()
    chosen = heldout.choose(
        tokens.data, tokens.metrics["dtype"],
        config.sequence_length, config.max_tokens, config.min_tokens,
    )  # fmt: skip
    taken = [row["source"] for row in trained.metrics["blend"]]
    source = taken.index(tokens.name) if tokens.name in taken else None
    ledger = trained.data / "ledger.jsonl"
    proof = heldout.prove_unseen(chosen.documents, tokens.data, ledger, source)
    models = {
        ("megatron", "before"): start.checkpoint,
        ("hf", "before"): start_model.folder,
        ("megatron", "after"): trained.checkpoint,
        ("hf", "after"): exported.folder,
    }
    losses = _measure(models, chosen.windows, ctx)
    answers = _lm_eval(config, {"before": start_model.folder, "after": exported.folder}, ctx)
    values = report.summary(losses, chosen.predicted) | report.lm_eval_summary(answers)
    gates = report.gates(values, config.max_loss_gap, config.max_perplexity_ratio)
    whole = {
        "passed": all(gate["holds"] for gate in gates),
        "metrics": values,
        "gates": gates,
        "sequence_length": config.sequence_length,
        "held_out": {"documents": chosen.documents, **proof},
    }
    if answers:
        whole["lm_eval"] = answers
    text = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
    (ctx.out / "report.json").write_text(text, encoding="utf-8")
    (ctx.out / "report.md").write_text(report.markdown(whole), encoding="utf-8")
    _hold(gates)
    return values


def _measure(
    models: Mapping[tuple[str, str], Path], windows: list[list[int]], ctx: Context
) -> dict[tuple[str, str], float]:
    """The mean loss of each model, one after the other: only one is in memory at a time."""
    from megatron_bridge import runs
    from tasks.evaluate import perplexity

    each = sum(len(window) - 1 for window in windows)
    losses: dict[tuple[str, str], float] = {}
    for (side, time), folder in models.items():
        tell = functools.partial(
            _tell, ctx, len(losses) * each, len(models) * each, f"{side}, {time} training"
        )
        tell(0)
        if side == "hf":
            found = perplexity.token_losses(folder, windows, tell)
        else:
            found = runs.token_losses(folder, windows)
        losses[side, time] = perplexity.mean(found)
    return losses


def _lm_eval(
    config: EvaluateConfig, models: Mapping[str, Path], ctx: Context
) -> dict[str, dict[str, Any]]:
    """lm-eval's results of each model; empty without tasks."""
    from tasks.evaluate import harness

    tasks = harness.read(config.lm_eval_tasks)
    if not tasks:
        return {}
    names = ", ".join(task.name for task in tasks)
    answers = {}
    for time, folder in models.items():
        model = "start model" if time == "before" else "exported model"
        tell = functools.partial(ctx.progress, unit="requests", note=f"lm-eval {names}, {model}")
        work = ctx.scratch / "lm_eval" / time
        answers[time] = harness.run(tasks, folder, config.lm_eval_limit, work, tell)
    return answers


def _tell(ctx: Context, done: int, total: int, note: str, predicted: int) -> None:
    ctx.progress(done + predicted, total, unit="tokens", note=note)


def _hold(gates: list[dict[str, Any]]) -> None:
    broken = [gate for gate in gates if not gate["holds"]]
    if broken:
        raise ProofError(
            "The evaluation does not pass", where=", ".join(gate["name"] for gate in broken),
            expected=", ".join(f"at most {gate['limit']:g}" for gate in broken),
            got=", ".join(f"{gate['value']:g}" for gate in broken),
            fix="loss gap: the conversion or the layout is wrong; perplexity: train longer, at "
            "another rate, or raise evaluate.max_perplexity_ratio",
        )  # fmt: skip
