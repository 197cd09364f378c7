"""Every family against transformers: logits and gradients in each layout, and round trips.

The reference never passes through our code: transformers builds the model, writes it and answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import family_bench
import make_page
import pytest
import torch

from megatron_bridge import families, listing

CASES = family_bench.all_cases()
NAMES = [case.name for case in CASES]
LIMITS = make_page.LIMITS
"""Largest difference of any logit (fp32), and of any gradient relative to the tensor's largest; how
many times the first a control must be."""


@pytest.fixture(scope="module")
def figures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """Figures by layout and case, of the cases that were asked for."""
    asked = {
        item.callspec.params.get("name")
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        cases = [case for case in CASES if case.name in asked]
        return family_bench.run(cases, tmp_path_factory.mktemp("families"))


@pytest.mark.parametrize(
    ("name", "layout"),
    [(case.name, layout) for case in CASES for layout in family_bench.layouts_of(case)],
)
def test_logits_are_hugging_faces(figures: Any, name: str, layout: str) -> None:
    assert figures[layout][name]["logits"] < LIMITS["logits"]


@pytest.mark.parametrize("layout", ["TP=1", "TP=2"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_hugging_faces(figures: Any, name: str, layout: str) -> None:
    found = figures[layout][name]
    assert found["gradient"] < LIMITS["gradients"], found["gradient_at"]


@pytest.mark.parametrize("name", NAMES)
def test_the_comparison_sees_every_control(figures: Any, name: str) -> None:
    found = figures["TP=1"][name]
    worst = max(figures[layout][name]["logits"] for layout in figures if name in figures[layout])
    assert {n: d for n, d in found["controls"].items() if d < LIMITS["controls"] * worst} == {}


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_the_recorded_ones(figures: Any, name: str) -> None:
    """On another machine a figure may be worse, but not by much; see `make_page.py`."""
    recorded = listing.figures()["cases"].get(name)
    if recorded is None:
        pytest.skip(f"{name} has no recorded figures; test_families_page.py asks for them")
    for kind, key in (("logits", "logits"), ("gradients", "gradient")):
        fresh = {n: f[name][key] for n, f in figures.items() if key in f.get(name, ())}
        assert fresh.keys() == recorded[kind].keys()
        assert {n: d for n, d in fresh.items() if d > 4 * recorded[kind][n]} == {}
    fresh = make_page.record(CASES[NAMES.index(name)], figures)
    assert fresh["weakest_control"]["logits"] >= recorded["weakest_control"]["logits"] / 4
    for said in ("model_type", "layers", "own_parts", "local_spec", "note"):
        assert fresh[said] == recorded[said]


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_the_name_that_is_told(figures: Any, name: str) -> None:
    config = CASES[NAMES.index(name)].config
    family = families.get(config["model_type"])
    told = set(listing.parameters(family, config, engine=False))
    built = set(figures["TP=1"][name]["parameters"])
    assert built - told == set()
    assert {n for n in told - built if not n.endswith(".expert_bias")} == set()  # a buffer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_round_trip_is_bit_identical(case: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    before, after = family_bench.round_trip(case, dtype, tmp_path)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype
        assert torch.equal(tensor.view(torch.uint8), after[name].view(torch.uint8)), name
