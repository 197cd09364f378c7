"""Event files, read back by TensorBoard's own reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tasks.train import events


def line(step: int, loss: float) -> dict[str, Any]:
    return {
        "step": step, "loss": loss, "grad_norm": 2.0, "learning_rate": 1e-4,
        "tokens_per_second": 100.0, "seconds": 10.0,
    }  # fmt: skip


def scalars(folder: Path, tag: str = "train/loss") -> list[tuple[int, float]]:
    found = EventAccumulator(str(folder)).Reload()
    return [(event.step, round(event.value, 4)) for event in found.Scalars(tag)]


def test_every_value_of_every_step_is_there(tmp_path: Path) -> None:
    lines = [line(1, 3.0), line(2, 2.5), line(3, 2.25)]
    events.write(tmp_path, lines)
    found = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(found.Tags()["scalars"]) == sorted(events.TAGS.values())
    for key, tag in events.TAGS.items():
        read = found.Scalars(tag)
        assert [event.step for event in read] == [1, 2, 3]
        assert [event.value for event in read] == pytest.approx([one[key] for one in lines])
    first, _, last = found.Scalars("train/loss")
    assert last.wall_time - first.wall_time == pytest.approx(20, abs=0.01)


def test_a_resumed_run_shows_each_step_once(tmp_path: Path) -> None:
    folder, log = tmp_path / "live", tmp_path / "log.jsonl"
    for attempt, steps in enumerate([[1, 2, 3], [2, 3, 4]]):
        kept = [line(step, 3.0 - step / 10) for step in range(1, steps[0])]
        log.write_text("".join(json.dumps(one) + "\n" for one in kept))
        live = events.Live(folder, log)
        for step in steps:
            with log.open("a") as file:
                file.write(json.dumps(line(step, 9.0 + attempt)) + "\n")
            live.tell(line(step, 9.0 + attempt))
        live.close()
    assert scalars(folder) == [(1, 2.9), (2, 10.0), (3, 10.0), (4, 10.0)]
