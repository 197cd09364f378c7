"""Shows sealed outputs on the Prefect server at `PREFECT_API_URL`; prints the flow run's id.

`report_driver.py TRAIN EVALUATE`: the folders of a train and an evaluate output.
"""

from __future__ import annotations

import sys
from pathlib import Path

from prefect import flow, task
from prefect.runtime import flow_run

from flows import lineage, reports
from tasks.core.artifacts import Artifact, EvalReport, MegatronCheckpoint
from tasks.core.stage import Outcome


@task(task_run_name="{stage}")
def show(stage: str, output: type[Artifact], folder: Path) -> None:
    tell = reports.listener(stage)
    tell(0.5, "half")
    tell(1.0, "done")
    path, record = lineage.open_record(folder)
    reports.sealed(Outcome("Built", output(path=path, record=record), 1.0))


@flow(name="megaline")
def pipeline(train: Path, evaluate: Path) -> str:
    show("train", MegatronCheckpoint, train)
    show("evaluate", EvalReport, evaluate)
    return str(flow_run.id)


if __name__ == "__main__":
    print(pipeline(Path(sys.argv[1]), Path(sys.argv[2])))
