"""Write `megatron_bridge/families/README.md` from the figures in `figures.json` beside it.

    python tests/families/make_page.py                          the page alone
    python tests/families/make_page.py --measure [CASE ...]     measure all cases, or these, first
    python tests/families/make_page.py --engine FILE            take in benchmarks/gpu_families.py's

Figures are rounded on a scale of 1, 2 and 5, differences up and controls down, so that the page is
the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from megatron_bridge import families, listing

FOLDER = Path(families.__file__).parent
FIGURES, PAGE = FOLDER / "figures.json", FOLDER / "README.md"
LIMITS = {"logits": 5e-5, "gradients": 1e-5, "controls": 20}
NUDGE = "one weight off by 1e-3"
LAYOUTS = {"TP=1": "TP=1", "TP=2": "TP=2, SP", "PP=2": "PP=2", "EP=2": "EP=2"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--measure", nargs="*", metavar="CASE")
    parser.add_argument("--engine", type=Path, metavar="FILE")
    options = parser.parse_args()
    recorded = json.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else {}
    engine = recorded.get("transformer_engine")
    if options.engine:
        engine = rounded_engine(json.loads(options.engine.read_text("utf-8")))
    cases = recorded.get("cases", {})
    if options.measure is not None:
        cases = measured(options.measure, cases)
    figures = {"limits": LIMITS, "cases": cases, "transformer_engine": engine}
    FIGURES.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(page(figures), "utf-8")


def measured(names: Iterable[str], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the records of all cases that there are, those of `names` (or all) measured anew."""
    import family_bench

    cases = family_bench.all_cases()
    asked = [case for case in cases if case.name in (names or {case.name for case in cases})]
    with tempfile.TemporaryDirectory() as folder:
        found = family_bench.run(asked, Path(folder))
    fresh = {case.name: record(case, found) for case in asked}
    known = {**before, **fresh}
    return {case.name: known[case.name] for case in cases if case.name in known}


def record(case: Any, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is kept of one case's figures; `found` is by layout and case."""
    own = {layout: figures[case.name] for layout, figures in found.items() if case.name in figures}
    controls = dict(own["TP=1"]["controls"])
    nudge = controls.pop(NUDGE)
    weakest = min(controls, key=controls.__getitem__)
    model_type = case.config["model_type"]
    return {
        "model_type": model_type,
        **listing.kind(families.get(model_type).megatron_config(case.config)),
        "logits": {layout: up(figures["logits"]) for layout, figures in own.items()},
        "largest_logit": up(own["TP=1"]["scale"]),
        "gradients": {n: up(f["gradient"]) for n, f in own.items() if "gradient" in f},
        "weakest_control": {"name": weakest, "logits": down(controls[weakest])},
        "one_weight_off_by_0.001": down(nudge),
        "note": case.note,
    }


def rounded_engine(engine: dict[str, Any]) -> dict[str, Any]:
    """The GPU run's section with rounded figures."""
    cases = {
        name: {key: up(value) if key == "logits" else value for key, value in figures.items()}
        for name, figures in engine["cases"].items()
    }
    return {**engine, "cases": cases}


def up(value: float) -> float:
    """The next number of 1, 2, 5, 10, … above, or the value itself."""
    if value == 0:
        return 0.0
    ten = math.floor(math.log10(value))
    return next(n for n in _scale(ten) if n >= value * (1 - 1e-9))


def down(value: float) -> float:
    """The next number of 1, 2, 5, 10, … below, or the value itself."""
    ten = math.floor(math.log10(value))
    return next(n for n in reversed(_scale(ten)) if n <= value * (1 + 1e-9))


def _scale(ten: int) -> list[float]:
    return [float(f"{digit}e{n}") for n in (ten - 1, ten, ten + 1) for digit in (1, 2, 5)]


def page(figures: Mapping[str, Any]) -> str:
    """Return the page's text."""
    cases, engine = figures["cases"], figures["transformer_engine"]
    limits = figures["limits"]
    nudges = [case["one_weight_off_by_0.001"] for case in cases.values()]
    heads = [f"logits {text}" for text in LAYOUTS.values()]
    heads += ["gradients TP=1", "gradients TP=2, SP", "weakest control", "our own parts"]
    table = [["model", *heads, "Transformer Engine, H200"]]
    order = list(families.FAMILIES)
    models = sorted(cases.items(), key=lambda item: order.index(item[1]["model_type"]))
    table += [_row(name, case, engine) for name, case in models]
    notes = [f"- {name}: {case['note']}." for name, case in models if case["note"]]
    return TEXT.format(
        families=len({case["model_type"] for case in cases.values()}),
        cases=len(cases),
        logits=_figure(limits["logits"]),
        gradients=_figure(limits["gradients"]),
        controls=limits["controls"],
        least=_figure(min(nudges, default=0)),
        most=_figure(max(nudges, default=0)),
        engine=_engine_words(engine),
        table="\n".join(_markdown(table)),
        notes="\n".join(notes),
    )


def _row(name: str, case: Mapping[str, Any], engine: Mapping[str, Any] | None) -> list[str]:
    control = case["weakest_control"]
    return [
        name if name == case["model_type"] else f"{name} (`{case['model_type']}`)",
        *(_figure(case["logits"].get(layout)) for layout in LAYOUTS),
        *(_figure(case["gradients"].get(layout)) for layout in ("TP=1", "TP=2")),
        f"{control['name']}: {_figure(control['logits'])}",
        ", ".join(case["own_parts"]) or "none",
        _on_engine(case, engine and engine["cases"].get(name)),
    ]


def _on_engine(case: Mapping[str, Any], found: Mapping[str, Any] | None) -> str:
    if found is None:
        return f"no: {case['local_spec']}" if case["local_spec"] else "not run"
    if "error" in found:
        return f"failed: {found['error'].splitlines()[0][:120]}"
    figure = _figure(found["logits"])
    if found["spec"] == "local":
        reason = case["local_spec"] or "no engine on the machine"
        return f"no: {reason} ({figure} on the local spec)"
    return figure


def _engine_words(engine: Mapping[str, Any] | None) -> str:
    if engine is None:
        return "It was not run yet."
    versions = ", ".join(f"{name} {text}" for name, text in engine["versions"].items())
    return f"Run on {engine['date']} on one {engine['machine']} with {versions}."


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:g}".replace("e-0", "e-")


def _markdown(rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


TEXT = """\
# Model families

Generated by `python tests/families/make_page.py` from `figures.json`; do not edit. To add a family,
see [ADDING.md](ADDING.md). `python -m megatron_bridge families` lists the families, their tensors'
names and these checks.

{families} model types, {cases} models. Each is a random float32 model of awkward sizes (most are 72
wide with 6 heads of 20; 331 tokens, 4 layers, sequences of 18 tokens, windows of 5), built and
answered by Hugging Face's own class or by the reference that a note names. From the same weights:

- **logits**: largest difference of any logit. Limit {logits}.
- **gradients**: of a fixed functional of the logits, largest difference of any tensor's, relative
  to its largest entry. Limit {gradients}.
- **weakest control**: the fault, put in on purpose, that changes the logits least. It must be
  {controls} times the worst difference above. One weight moved by 0.001 shows as {least} to {most}.
- Every model goes to Megatron and back **bit for bit**, in float32 and in bfloat16.
- **TP**: tensor parallel ranks, **SP**: with sequence parallelism, **PP**: pipeline stages, **EP**:
  expert parallel ranks. Layouts run on a CPU, Megatron's local layer spec.
- **Transformer Engine**: the same checkpoints on a GPU, logits, `NVIDIA_TF32_OVERRIDE=0`. Where its
  layer spec does not carry the model, the reason. {engine}

Figures are rounded on a scale of 1, 2, 5: differences up, controls down.

{table}

{notes}
"""


if __name__ == "__main__":
    main()
