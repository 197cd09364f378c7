"""Training: the same losses in every layout, as in plain PyTorch, and after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import adamw
import pytest
import toys

from megatron_bridge import checkpoint, resume, runs
from megatron_bridge.config import TrainConfig, TrainSpec
from megatron_bridge.convert import import_hf
from megatron_bridge.errors import ConfigError, ProofError, RetryableError
from megatron_bridge.launch.local import LocalLauncher

HERE = Path(__file__).parent
CONFIG = TrainConfig(
    steps=20,
    sequence_length=30,
    micro_batch_size=2,
    global_batch_size=8,
    learning_rate=2e-3,
    weight_decay=1.0,
    checkpoint_every=4,
)


class Toy:
    """A folder with a checkpoint and tokens, and runs from them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        toys.hf_model("qwen3", root / "hf")
        import_hf(root / "hf", root / "start")
        toys.indexed_dataset(root / "train")

    def spec(self, name: str, **changes: Any) -> TrainSpec:
        return TrainSpec(
            config=TrainConfig(**{**CONFIG.model_dump(), **changes}),
            checkpoint=self.root / "start",
            train_data=self.root / "train",
            end_of_document=toys.END_OF_DOCUMENT,
            run_dir=self.root / name,
        )

    def train(self, name: str, **changes: Any) -> list[float]:
        runs.train(self.spec(name, **changes))
        return [line["loss"] for line in resume.read_lines(self.root / name / resume.LOG)]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="module")
def one_rank(toy: Toy) -> list[float]:
    return toy.train("one")


@pytest.fixture(scope="module")
def two_ranks(toy: Toy) -> list[float]:
    return toy.train("dp2", world_size=2)


def _apart(a: list[float], b: list[float]) -> float:
    assert len(a) == len(b) == CONFIG.steps
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def test_data_parallel_losses_are_one_ranks(one_rank: list[float], two_ranks: list[float]) -> None:
    assert _apart(one_rank, two_ranks) < 1e-4
    assert one_rank[-1] < one_rank[0] - 0.3


def test_tensor_parallel_losses_are_one_ranks(toy: Toy, one_rank: list[float]) -> None:
    tensor = toy.train("tp2", world_size=2, tensor_parallel=2, sequence_parallel=True)
    info = checkpoint.read_info(resume.folder(toy.root / "tp2", CONFIG.steps))
    assert (info.vocab_size, info.padded_vocab_size, info.vocab_divisor) == (331, 512, 256)
    assert _apart(one_rank, tensor) < 1e-4


def test_losses_are_those_of_torchs_adamw(toy: Toy, one_rank: list[float]) -> None:
    data = adamw.batches(toy.root / "train", CONFIG, toy.root / "index")
    assert _apart(one_rank, adamw.losses(toy.root / "hf", data, CONFIG)) < 1e-4
    controls: dict[str, dict[str, Any]] = {
        "weight decay on norms": {"decay_norms": True},
        "beta2 0.999": {"beta2": 0.999},
        "no clipping": {"clip": False},
    }
    for name, change in controls.items():
        wrong = adamw.losses(toy.root / "hf", data, CONFIG, **change)
        assert _apart(one_rank, wrong) > 1e-3, name


def test_every_sample_is_in_the_ledger_once(toy: Toy, two_ranks: list[float]) -> None:
    ledger = resume.read_lines(toy.root / "dp2" / resume.LEDGER)
    taken = [i for line in ledger for rank in line["samples"] for i in rank]
    assert sorted(taken) == list(range(CONFIG.steps * CONFIG.global_batch_size))
    assert all(len(line["samples"]) == 2 for line in ledger)
    documents = {d for line in ledger for rank in line["documents"] for s in rank for d in s}
    assert documents <= set(range(60))


def test_a_killed_run_goes_on_as_if_undisturbed(toy: Toy, two_ranks: list[float]) -> None:
    spec = toy.spec("killed", world_size=2)
    log = spec.run_dir / resume.LOG
    file = toy.root / "killed.json"
    file.write_text(spec.model_dump_json())
    caller = subprocess.Popen(
        [sys.executable, HERE / "run_train.py", file],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        start_new_session=True,
    )
    try:
        _wait(lambda: len(resume.read_lines(log)) >= 6, "the sixth step")
    finally:
        os.killpg(caller.pid, signal.SIGKILL)
        caller.wait()
    _wait(lambda: not _processes(str(spec.run_dir)), "the end of every process")
    assert len(resume.read_lines(log)) < CONFIG.steps

    seen: list[int] = []
    metrics = runs.train(spec, on_step=lambda line: seen.append(line["step"]))
    assert metrics["resumed_from"] >= 4
    assert seen == list(range(metrics["resumed_from"] + 1, CONFIG.steps + 1))
    lines = resume.read_lines(log)
    assert [line["step"] for line in lines] == list(range(1, CONFIG.steps + 1))
    assert _apart([line["loss"] for line in lines], two_ranks) < 1e-6
    undisturbed = toy.root / "dp2" / resume.LEDGER
    assert (spec.run_dir / resume.LEDGER).read_text() == undisturbed.read_text()
    assert not _processes(str(spec.run_dir))
    names = sorted(path.name for path in (spec.run_dir / "ckpt").iterdir())
    assert names == ["iter_0000016", "iter_0000020"]
    assert runs.train(spec)["steps"] == CONFIG.steps


def test_a_checkpoint_without_its_mark_is_ignored(
    toy: Toy, two_ranks: list[float], tmp_path: Path
) -> None:
    shutil.copytree(toy.root / "dp2" / "ckpt", tmp_path / "ckpt")
    assert resume.newest(tmp_path)[0] == 20
    (tmp_path / "ckpt" / "iter_0000020" / checkpoint.MARK).unlink()
    assert resume.newest(tmp_path)[0] == 16
    shard = next((tmp_path / "ckpt" / "iter_0000016").glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert resume.newest(tmp_path) == (0, None)


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    (tmp_path / resume.LOG).write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    resume.cut(tmp_path, 2)
    assert [line["step"] for line in resume.read_lines(tmp_path / resume.LOG)] == [1, 2]


def test_the_trained_checkpoint_loads_in_another_layout(toy: Toy, two_ranks: list[float]) -> None:
    metrics = runs.train(toy.spec("dp2", world_size=2))
    losses = runs.token_losses(Path(metrics["checkpoint"]), [list(range(1, 20))])
    assert len(losses[0]) == 18


def test_a_loss_that_is_no_number_stops_the_run(toy: Toy) -> None:
    with pytest.raises(ProofError, match="not finite") as caught:
        toy.train("wild", learning_rate=1e30, clip_grad=0.0)
    assert "Traceback" not in str(caught.value)


def test_a_rank_that_is_lost_may_be_retried(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    (toy.root / "lost.json").write_text("{}")
    with pytest.raises(RetryableError, match="rank was lost"):
        LocalLauncher().run("lost_rank", toy.root / "lost.json", 2)


@pytest.mark.parametrize(
    ("extras", "message"),
    [({"num_layer": 3}, "no field"), ({"hidden_size": 3}, "set elsewhere")],
)
def test_megatron_fields_are_checked_by_name(
    toy: Toy, extras: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        toy.train("extras", megatron=extras)


def _wait(condition: Any, what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)


def _processes(text: str) -> list[str]:
    """Command lines of living processes that name `text`, this one apart."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and path.parent.name != str(os.getpid()):
            found.append(line)
    return found
