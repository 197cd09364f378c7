"""Runs the real flow over three small stages, for tests that watch it from outside.

`flow_driver.py ROOT MODE`: the middle stage behaves by MODE (`fine`, `flaky`, `config`, `sleep`).
Prints the rows and the flow run's state as one JSON document. `sleep` goes through `flows.run`,
as the command line does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

import flows.line
import flows.run
from flows.config import load
from megatron_bridge.launch.process import tied
from tasks.core import stage as engine
from tasks.core.artifacts import CleanCorpus, RawCorpus
from tasks.core.errors import ConfigError
from tasks.core.stage import Context, stage

RECIPE = Path(__file__).parents[2] / "deploy" / "recipes" / "toy.yaml"
ROOT, MODE = sys.argv[1], sys.argv[2]


class Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


@stage("raw", version=1, output=RawCorpus, label=lambda config, inputs: "x")
def raw(config: Plain, ctx: Context) -> dict[str, Any]:
    (ctx.out / "raw.txt").write_text("abc")
    return {"characters": 3}


@stage("middle", version=1, output=CleanCorpus, label=lambda config, inputs: "x")
def middle(config: Plain, ctx: Context, corpus: RawCorpus) -> dict[str, Any]:
    with (ctx.scratch / "tries").open("a") as file:
        file.write("x")
    tries = (ctx.scratch / "tries").stat().st_size
    ctx.progress(tries, 3, unit="tries")
    if MODE == "config":
        raise ConfigError("A wrong value", where="middle.x")
    if MODE == "flaky" and tries < 3:
        raise OSError("lost a node")
    if MODE == "sleep":
        child = tied(["sleep", "300"], stdout=2)
        (Path(ROOT) / "child.pid").write_text(str(child.pid))
        child.wait()
    (ctx.out / "part-00000.jsonl").write_text("ABC")
    return {"tries": tries}


@stage("last", version=1, output=CleanCorpus, label=lambda config, inputs: "x")
def last(config: Plain, ctx: Context, corpus: CleanCorpus) -> dict[str, Any]:
    (ctx.out / "part-00000.jsonl").write_text(corpus.shards[0].read_text())
    return {"characters": 3}


def line(config: Any, submit: Any) -> None:
    corpus = submit(raw, Plain())
    submit(last, Plain(), corpus=submit(middle, Plain(), corpus=corpus))


def main() -> None:
    flows.line.line = line
    if MODE == "sleep":
        flows.run.run(load(RECIPE), ROOT, None, [])
        return
    engine.RETRY_DELAYS_SECONDS[:] = [0.1, 0.1]
    from flows.pipeline import pipeline

    state = pipeline(load(RECIPE), ROOT, return_state=True)
    rows = state.result(raise_on_failure=False)
    run = str(state.state_details.flow_run_id)
    print(json.dumps({"rows": rows, "state": state.type.value, "flow_run_id": run}))


if __name__ == "__main__":
    main()
