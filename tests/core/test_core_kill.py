"""`kill -9` at each step of a stage's life: nothing half-written is taken for whole."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from core_stages import SEALED, STEPS, RawConfig, UpperConfig, raw, upper

from tasks.core.store import Store

DRIVER = Path(__file__).with_name("core_stages.py")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


def start(root: Path, step: str = "none") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(DRIVER), str(root), step],
        env=ENVIRONMENT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("step", STEPS)
def test_killed_then_run_again(tmp_path: Path, step: str) -> None:
    killed = start(tmp_path, step)
    assert killed.communicate(timeout=60)[0] == ""
    assert killed.returncode == -9

    store = Store(tmp_path)
    corpus = raw.build(store, RawConfig()).artifact
    address = upper.address(UpperConfig(), {"corpus": corpus}, store.digests)
    assert (upper.find(store, address) is not None) == (step in SEALED)
    if (tmp_path / "child.pid").exists():
        child, deadline = int((tmp_path / "child.pid").read_text()), time.monotonic() + 5
        while alive(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not alive(child)

    again = start(tmp_path)
    said = again.communicate(timeout=20)[0]
    assert (again.returncode, said.strip()) == (0, "Reused" if step in SEALED else "Built")
    sealed = upper.find(store, address)
    assert sealed is not None
    assert sealed.shards[0].read_text() == "ABC"
    assert store.misfits(sealed.record, f"{address.key}/data", deep=True) == []
    assert sorted(os.listdir(sealed.path)) == ["artifact.json", "data"]


def test_two_processes_build_once(tmp_path: Path) -> None:
    racers = [start(tmp_path) for _ in range(4)]
    said = sorted(racer.communicate(timeout=60)[0].strip() for racer in racers)
    assert said == ["Built", "Reused", "Reused", "Reused"]
