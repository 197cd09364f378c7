"""Training with experts, and with an embedding that the first and the last stage share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import toys

from megatron_bridge import families, resume, runs, torch_dist
from megatron_bridge.config import TrainConfig, TrainSpec
from megatron_bridge.convert import import_hf

CONFIG: dict[str, Any] = {
    "steps": 4,
    "sequence_length": 30,
    "micro_batch_size": 2,
    "global_batch_size": 8,
    "learning_rate": 5e-3,
}
MODELS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen2": {},
    "deepseek_v3": {k: v for k, v in families.get("deepseek_v3").toy.items() if k != "model_type"},
}
ROUTER_BIAS = "decoder.layers.3.mlp.router.expert_bias"


class Runs:
    """Checkpoints by kind, tokens, and runs from them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for kind, changes in MODELS.items():
            toys.hf_model(kind, root / "hf" / kind, **changes)
            import_hf(root / "hf" / kind, root / kind)
        toys.indexed_dataset(root / "train")

    def run(self, kind: str, name: str, **changes: Any) -> tuple[list[float], list[float], Path]:
        """Return losses and gradient norms by step, and the last checkpoint."""
        spec = TrainSpec(
            config=TrainConfig(**{**CONFIG, **changes}),
            checkpoint=self.root / kind,
            train_data=self.root / "train",
            end_of_document=toys.END_OF_DOCUMENT,
            run_dir=self.root / f"{kind} {name}",
        )
        last = Path(runs.train(spec)["checkpoint"])
        log = resume.read_lines(spec.run_dir / resume.LOG)
        return [line["loss"] for line in log], [line["grad_norm"] for line in log], last


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("experts"))


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("mixtral", {"expert_parallel": 2}),
        ("qwen2", {"pipeline_parallel": 2}),
        ("deepseek_v3", {"tensor_parallel": 2, "sequence_parallel": True}),
    ],
    ids=["mixtral at EP=2", "tied qwen2 at PP=2", "deepseek_v3 at TP=2"],
)
def test_two_ranks_train_as_one(trained: Runs, kind: str, layout: dict[str, Any]) -> None:
    losses, norms, last = trained.run(kind, "one rank")
    assert losses[-1] < losses[0] - 0.2
    two_losses, two_norms, _ = trained.run(kind, "two ranks", world_size=2, **layout)
    assert two_losses == pytest.approx(losses, abs=1e-4)
    # Adam does not see a gradient that is too large by a factor; the norm does.
    assert two_norms == pytest.approx(norms, rel=1e-4)
    if kind == "deepseek_v3":
        with torch_dist.Reader(trained.root / kind) as start, torch_dist.Reader(last) as end:
            assert end.read(ROUTER_BIAS, ()).equal(start.read(ROUTER_BIAS, ()))


def test_experts_are_balanced_on_demand(trained: Runs) -> None:
    balance = {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 1.0}
    losses, norms, _ = trained.run("mixtral", "one rank")
    balanced, steeper, _ = trained.run("mixtral", "balanced", megatron=balance)
    # The log tells the language model's loss alone; the balance shows in what the steps do.
    assert balanced[0] == pytest.approx(losses[0], abs=1e-6)
    assert steeper[0] > norms[0] * 1.01
    assert max(abs(a - b) for a, b in zip(balanced, losses, strict=True)) > 1e-3
