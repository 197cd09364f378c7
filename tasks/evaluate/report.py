"""The report: what was measured, which gates hold, and the same as a table to read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

TIMES = ("before", "after")


def summary(losses: Mapping[tuple[str, str], float], predicted: int) -> dict[str, Any]:
    """The measured values, flat.

    Args:
        losses: mean loss by ("hf" or "megatron", "before" or "after").
        predicted: number of ids each is the mean of.
    """
    values: dict[str, Any] = {"eval_tokens": predicted}
    for time in TIMES:
        hf, megatron = losses["hf", time], losses["megatron", time]
        values |= {
            f"perplexity_{time}": math.exp(hf),
            f"loss_hf_{time}": hf,
            f"loss_megatron_{time}": megatron,
            f"loss_gap_{time}": abs(hf - megatron),
        }
    values["perplexity_ratio"] = values["perplexity_after"] / values["perplexity_before"]
    return values


def lm_eval_summary(answers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """lm-eval's values, flat: `TASK_METRIC_before`, `TASK_METRIC_stderr_before`, `TASK_items`.

    Args:
        answers: results as `harness.run` returns them, by "before" and "after"; may be empty.
    """
    values: dict[str, Any] = {}
    for time, tasks in answers.items():
        for task, found in tasks.items():
            values[f"{task}_items"] = found["items"]
            for metric, measured in found["metrics"].items():
                values[f"{task}_{metric}_{time}"] = measured["value"]
                if measured["stderr"] is not None:
                    values[f"{task}_{metric}_stderr_{time}"] = measured["stderr"]
    return values


def gates(
    values: Mapping[str, Any], max_loss_gap: float, max_perplexity_ratio: float | None
) -> list[dict[str, Any]]:
    """Each gate with its limit, the value measured, and whether it holds."""
    limits = {f"loss_gap_{time}": max_loss_gap for time in TIMES}
    if max_perplexity_ratio is not None:
        limits["perplexity_ratio"] = max_perplexity_ratio
    return [
        {"name": name, "value": values[name], "limit": limit, "holds": values[name] <= limit}
        for name, limit in limits.items()
    ]


def lm_eval_lines(values: Mapping[str, Any]) -> list[str]:
    """The values of `lm_eval_summary` among others, a line a task."""
    lines = []
    for task in (key.removesuffix("_items") for key in values if key.endswith("_items")):
        metrics = [
            key.removeprefix(f"{task}_").removesuffix("_before")
            for key in values
            if key.startswith(f"{task}_") and key.endswith("_before") and "_stderr_" not in key
        ]
        shown = ", ".join(
            f"{metric} {values[f'{task}_{metric}_before']:.4f} -> "
            f"{values[f'{task}_{metric}_after']:.4f}{_error(values, task, metric)}"
            for metric in metrics
        )
        lines.append(f"lm-eval {task}  {shown}  ({values[f'{task}_items']} items)")
    return lines


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a page to read."""
    values, held_out = report["metrics"], report["held_out"]
    rows = [
        [
            f"{time} training",
            f"{values[f'loss_hf_{time}']:.6f}",
            f"{values[f'loss_megatron_{time}']:.6f}",
            f"{values[f'loss_gap_{time}']:.1e}",
            f"{values[f'perplexity_{time}']:.3f}",
        ]
        for time in TIMES
    ]
    gate_rows = [
        [gate["name"], f"{gate['value']:.6g}", f"{gate['limit']:.6g}", _said(gate["holds"])]
        for gate in report["gates"]
    ]
    document_rows = [
        [document["split"], document["id"], document["title"], str(document["tokens"])]
        for document in held_out["documents"]
    ]
    return "\n".join(
        [
            "# Evaluation",
            "",
            f"Mean loss of {values['eval_tokens']:,} predicted tokens, in float32, windows of "
            f"{report['sequence_length']} tokens; perplexity is exp(loss in Hugging Face).",
            "",
            *_table(["", "Hugging Face", "Megatron", "difference", "perplexity"], rows),
            "",
            f"Perplexity after / before: {values['perplexity_ratio']:.4f}.",
            "",
            "## Gates",
            "",
            *_table(["gate", "value", "at most", "holds"], gate_rows),
            "",
            *_lm_eval(report.get("lm_eval", {})),
            "## Held-out documents",
            "",
            f"None of these is in any of the {held_out['training_samples']:,} training samples "
            f"(which took from {held_out['training_documents']:,} documents).",
            "",
            *_table(["split", "id", "title", "tokens"], document_rows),
            "",
        ]
    )


def _lm_eval(answers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The section of lm-eval's tasks; empty without any."""
    if not answers:
        return []
    rows = [
        [task, metric, str(found["items"]), *(_measured(answers[t], task, metric) for t in TIMES)]
        for task, found in answers["before"].items()
        for metric in found["metrics"]
    ]
    return [
        "## lm-eval",
        "",
        "The first items of each task, with the standard error; a difference within it says "
        "nothing.",
        "",
        *_table(["task", "metric", "items", *(f"{time} training" for time in TIMES)], rows),
        "",
    ]


def _error(values: Mapping[str, Any], task: str, metric: str) -> str:
    error = values.get(f"{task}_{metric}_stderr_after")
    return "" if error is None else f" ± {error:.4f}"


def _measured(answer: Mapping[str, Any], task: str, metric: str) -> str:
    found = answer[task]["metrics"][metric]
    error = "" if found["stderr"] is None else f" ± {found['stderr']:.4f}"
    return f"{found['value']:.4f}{error}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _said(holds: bool) -> str:
    return "yes" if holds else "no"
