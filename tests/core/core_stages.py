"""Small stages for the engine's tests, and a process that kills itself at a chosen step.

Run as a script: `core_stages.py ROOT STEP`, where STEP is one of `STEPS` or `none`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict

from megatron_bridge.launch.process import tied
from tasks.core import stage as engine
from tasks.core.artifacts import CleanCorpus, RawCorpus
from tasks.core.fingerprint import Runtime
from tasks.core.lease import Lease
from tasks.core.stage import Context, stage
from tasks.core.storage.local import LocalStorage
from tasks.core.store import Store

STEPS = (
    "before the lease", "after the lease", "while building", "after building", "after hashing",
    "before placing", "after placing", "before the record", "inside the record's write",
    "after the record", "before giving the lease back",
)  # fmt: skip
SEALED = STEPS[-2:]


class RawConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str = "abc"
    workers: Annotated[int, Runtime] = 1


class UpperConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    times: int = 1


@stage("raw", version=1, output=RawCorpus, label=lambda config, inputs: config.text)
def raw(config: RawConfig, ctx: Context) -> dict[str, Any]:
    (ctx.out / "raw.txt").write_text(config.text)
    return {"characters": len(config.text)}


@stage("upper", version=1, output=CleanCorpus, label=lambda config, inputs: inputs[0])
def upper(config: UpperConfig, ctx: Context, corpus: RawCorpus) -> dict[str, Any]:
    count_run(ctx.scratch / "runs")
    child = tied(["sleep", "300"], stdout=2)
    (ctx.scratch.parents[3] / "child.pid").write_text(str(child.pid))
    text = corpus.files[0].read_text().upper() * config.times
    (ctx.out / "part-00000.jsonl").write_text(text[: len(text) // 2])
    at("while building")
    (ctx.out / "part-00000.jsonl").write_text(text)
    child.kill()
    child.wait()
    return {"characters": len(text)}


def count_run(path: Path) -> None:
    with path.open("a") as file:
        file.write("run\n")


def at(step: str) -> None:
    """Die here, as by `kill -9`, where this is the chosen step."""
    if len(sys.argv) > 2 and sys.argv[2] == step:
        os.kill(os.getpid(), signal.SIGKILL)


def arm(owner: Any, name: str, before: str = "", after: str = "", key: str = "") -> None:
    """Let a method die before or after it ran (only for calls whose first argument ends so)."""
    original: Callable[..., Any] = getattr(owner, name)

    def armed(*arguments: Any, **options: Any) -> Any:
        mine = not key or any(str(argument).endswith(key) for argument in arguments)
        at(before if mine else "")
        result = original(*arguments, **options)
        at(after if mine else "")
        return result

    setattr(owner, name, armed)


def main() -> None:
    store = Store(sys.argv[1])
    corpus = raw.build(store, RawConfig()).artifact
    arm(Store, "lease", before="before the lease")
    arm(Store, "open_work", before="after the lease")
    arm(engine, "list_files", before="after building", after="after hashing")
    arm(LocalStorage, "place", before="before placing", after="after placing")
    arm(LocalStorage, "put", before="before the record", after="after the record")
    arm(os, "replace", before="inside the record's write", key="artifact.json")
    arm(Lease, "release", before="before giving the lease back")
    print(upper.build(store, UpperConfig(), {"corpus": corpus}).state)


if __name__ == "__main__":
    main()
