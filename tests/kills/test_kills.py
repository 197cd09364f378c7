"""`kill -9` of the real command at random moments of its stages: the next run heals, at once.

The default suite kills a small line once in cleaning and once in training; `-m slow` kills it, the
toy and the quickstart twice in every stage. The moments come from a seed that is printed;
MEGALINE_KILL_SEED repeats one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from bad_input_cases import RECIPE as SMALL
from bad_input_cases import write_dump

from flows.config import PipelineConfig, load
from flows.line import line, needed, plan
from tasks.core.stage import Stage
from tasks.core.store import Store

REPOSITORY = Path(__file__).parents[2]
RECIPES = REPOSITORY / "deploy" / "recipes"
STAGES = list(PipelineConfig.model_fields)
MARK = "MEGALINE_KILL_MARK"
EXACT = ("ingest", "clean", "model", "tokens", "to_megatron")
"""Stages whose files are the same in every run; training's losses are equal to 1e-6."""


def test_a_small_line_killed_in_its_longest_stages(tmp_path: Path) -> None:
    recipe = _small(tmp_path)
    undisturbed = _built(recipe, tmp_path / "undisturbed", until="to_hf")
    _kill_and_heal(recipe, tmp_path / "store", undisturbed, ["clean", "train"], 1, until="to_hf")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["small", "toy", "quickstart"])
def test_a_line_killed_twice_in_every_stage(tmp_path: Path, name: str) -> None:
    recipe = _small(tmp_path) if name == "small" else RECIPES / f"{name}.yaml"
    undisturbed = _built(recipe, tmp_path / "undisturbed", until="export")
    _kill_and_heal(recipe, tmp_path / "store", undisturbed, STAGES, 2, until="export")


def _small(tmp_path: Path) -> Path:
    recipe = tmp_path / "recipe.yaml"
    write_dump(tmp_path / "dump.xml")
    train = {"steps": 4, "world_size": 2, "global_batch_size": 2, "checkpoint_every": 1}
    values = SMALL | {"train": SMALL["train"] | train, "export": {"proof": False}}
    recipe.write_text(yaml.safe_dump(values))
    return recipe


@dataclass
class Line:
    """One recipe, one store, and the command that is killed."""

    recipe: Path
    root: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, log: Path, *words: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {MARK: self.mark, "PYTHONPATH": str(REPOSITORY)}
        environment.pop("PREFECT_API_URL", None)
        with log.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "flows.cli", "run", str(self.recipe), *words,
                 "--root", str(self.root)],
                env=environment, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

    def survivors(self) -> list[str]:
        """What still runs of all that this line started."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (path / "environ").read_bytes():
                    found.append((path / "cmdline").read_text().replace("\0", " "))
        return found


def _kill_and_heal(
    recipe: Path, root: Path, undisturbed: Store, stages: Sequence[str], rounds: int, until: str
) -> None:
    seed = int(os.environ.get("MEGALINE_KILL_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"MEGALINE_KILL_SEED={seed}")
    dice, killed = random.Random(seed), Line(recipe, root)
    seconds = {name: record.seconds for name, record in _records(recipe, undisturbed).items()}
    hits = 0
    try:
        for stage in stages:
            for _ in range(rounds):
                hits += _kill_in(killed, stage, dice.uniform(0, 0.9 * seconds[stage]))
        log = root.with_suffix(".log")
        again = killed.start(log, "--until", until)
        assert again.wait(1200) == 0, log.read_text()
        assert "waiting for" not in log.read_text()
        _wait_for_the_end_of(killed)
    finally:
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={killed.mark}".encode() in (path / "environ").read_bytes():
                    os.kill(int(path.name), signal.SIGKILL)
    print(f"{hits} of {len(stages) * rounds} kills hit an unfinished stage")
    assert hits > 0
    _assert_same(recipe, Store(root), undisturbed)


def _kill_in(killed: Line, stage: str, delay: float) -> bool:
    """Kill the run `delay` seconds into a stage; true where the stage was not done by then."""
    log = killed.root.with_suffix(".log")
    sealed = any(killed.root.glob(f"{stage}/*/*/artifact.json"))
    words = ["--until", stage, *(["--force", stage] if sealed else [])]
    run = killed.start(log, *words)
    # Without the mark of an earlier, killed holder: only this run's own lease counts.
    pids = {run.pid}
    while not _leases(killed.root, stage, pids) and run.poll() is None:
        time.sleep(0.005)
    time.sleep(delay)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait(30)
    hit = bool(_leases(killed.root, stage, pids))
    print(f"{stage}: killed after {delay:.2f} s, {'unfinished' if hit else 'done by then'}")
    assert run.returncode in (-signal.SIGKILL, 0), log.read_text()
    assert "waiting for" not in log.read_text()
    _wait_for_the_end_of(killed)
    return hit


def _leases(root: Path, stage: str, pids: set[int]) -> list[Path]:
    found = []
    for path in root.glob(f"{stage}/*/*/lease.json"):
        with contextlib.suppress(OSError, ValueError):
            if json.loads(path.read_text())["pid"] in pids:
                found.append(path)
    return found


def _wait_for_the_end_of(killed: Line) -> None:
    deadline = time.monotonic() + 20
    while left := killed.survivors():
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _assert_same(recipe: Path, store: Store, undisturbed: Store) -> None:
    ours, theirs = _records(recipe, store), _records(recipe, undisturbed)
    assert set(ours) == set(theirs)
    for name in ours:
        folder = next(store.root.glob(f"{name}/*/*/artifact.json")).parent
        assert sorted(path.name for path in folder.iterdir()) == ["artifact.json", "data"]
        data = str((folder / "data").relative_to(store.root))
        assert store.misfits(ours[name], data, deep=True) == []
        if name in EXACT:
            assert _digests(ours[name]) == _digests(theirs[name]), name
    losses = [_losses(one.root) for one in (store, undisturbed)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6, rel=0)


def _digests(record: Any) -> dict[str, str]:
    return {file.path: file.sha256 for file in record.files}


def _losses(root: Path) -> list[float]:
    (log,) = root.glob("train/*/*/data/log.jsonl")
    return [json.loads(text)["loss"] for text in log.read_text().splitlines()]


def _records(recipe: Path, store: Store) -> dict[str, Any]:
    planned = plan(load(recipe), store)
    return {name: item.artifact.record for name, item in planned.items() if item.artifact}


def _built(recipe: Path, root: Path, until: str) -> Store:
    """The same line without Prefect and without kills."""
    store, wanted = Store(root), needed(load(recipe), until)

    def submit(stage: Stage, config: Any, **inputs: Any) -> Any:
        if stage.name in wanted:
            return stage.build(store, config, inputs).artifact
        return None

    line(load(recipe), submit)
    return store
