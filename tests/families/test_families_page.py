"""The page of figures, and the command that lists families, say what is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import family_bench
import make_page
import pytest

from megatron_bridge import __main__ as bridge
from megatron_bridge import families, listing


def test_the_page_is_made_from_the_figures() -> None:
    assert make_page.page(listing.figures()) == make_page.PAGE.read_text("utf-8")


def test_every_case_is_recorded_and_every_family_has_one() -> None:
    recorded = listing.figures()["cases"]
    assert list(recorded) == [case.name for case in family_bench.all_cases()]
    assert {case["model_type"] for case in recorded.values()} == set(families.FAMILIES)


def test_recorded_figures_are_under_the_limits() -> None:
    recorded = listing.figures()
    assert recorded["limits"] == make_page.LIMITS
    for name, case in recorded["cases"].items():
        assert max(case["logits"].values()) <= make_page.LIMITS["logits"], name
        assert max(case["gradients"].values()) <= make_page.LIMITS["gradients"], name
        wanted = {"TP=1", "TP=2", "PP=2"} | ({"EP=2"} if "experts" in case["layers"] else set())
        assert case["logits"].keys() == wanted or case["note"], name


def test_what_ran_on_a_gpu_is_recorded_of_every_case() -> None:
    recorded = listing.figures()
    engine = recorded["transformer_engine"]
    if engine is None:
        pytest.skip("no GPU run is recorded; see benchmarks/gpu_families.py")
    assert engine["cases"].keys() == recorded["cases"].keys()
    for name, found in engine["cases"].items():
        if "error" not in found:
            assert found["logits"] <= 1e-4, name
            assert found["names_not_told"] == found["names_not_built"] == [], name
            on_engine = found["spec"] == "Transformer Engine"
            assert on_engine == (recorded["cases"][name]["local_spec"] is None), name


def test_the_page_shows_a_gpu_run() -> None:
    recorded = listing.figures()
    local = {"logits": 1e-5, "spec": "local"}
    cases = {name: dict(local) for name in recorded["cases"]}
    cases["llama"] = {"logits": 2e-6, "spec": "Transformer Engine"}
    cases["qwen3"] = {"error": "RuntimeError: no kernel\nat line 3"}
    engine = {"machine": "H200", "date": "2026-01-02", "versions": {"torch": "2"}, "cases": cases}
    page = make_page.page({**recorded, "transformer_engine": engine})
    assert "Run on 2026-01-02 on one H200 with torch 2." in page
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    ends = {row[0]: row[-1] for row in rows}
    assert ends["| llama"] == "2e-6 |"
    assert ends["| qwen3"] == "failed: RuntimeError: no kernel |"
    assert ends["| bloom"].endswith("(1e-5 on the local spec) |")


@pytest.mark.parametrize(
    ("value", "above", "below"),
    [(7.6e-6, 1e-5, 5e-6), (1e-5, 1e-5, 1e-5), (2.1e-6, 5e-6, 2e-6), (13.0, 20.0, 10.0)],
)
def test_figures_are_rounded_to_1_2_5(value: float, above: float, below: float) -> None:
    assert (make_page.up(value), make_page.down(value)) == (above, below)


def test_the_command_loads_no_torch_and_lists_every_family() -> None:
    code = (
        "import sys; from megatron_bridge.__main__ import main;"
        "codes = [main(['families', *more]) for more in ([], ['--json'], ['--names', 'llama'])];"
        "sys.exit(any(codes) or any(m in sys.modules for m in ('torch', 'transformers', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    heads = {line.split(" ")[0] for line in done.stdout.splitlines()}
    assert set(families.FAMILIES) <= heads


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_stops_early_is_no_error(form: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "megatron_bridge", "families", *form]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert bridge.main(["families", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_gives_the_checks_with_their_figures(capsys: pytest.CaptureFixture[str]) -> None:
    proof = told(capsys)
    assert list(proof["families"]) == list(families.FAMILIES)
    mixtral = proof["families"]["mixtral"]["cases"]["mixtral"]
    assert mixtral["logits"].keys() == {"TP=1", "TP=2", "PP=2", "EP=2"}
    assert mixtral["gradients"].keys() == {"TP=1", "TP=2"}


def test_names_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["megatron"]: row for row in told(capsys, "--names", "qwen3_moe")}
    layer = "decoder.layers.{layer}."
    norm = rows[layer + "input_layernorm.weight"]
    assert norm["hugging_face"] == ["model.layers.{layer}.input_layernorm.weight"]
    assert norm["transformer_engine"] == layer + "self_attention.linear_qkv.layer_norm_weight"
    assert norm["checkpoint"] == (
        "decoder.layers.self_attention.linear_qkv.layer_norm_weight[{layer}]"
    )
    expert = rows[layer + "mlp.experts.local_experts.{expert}.linear_fc2.weight"]
    assert expert["transformer_engine"] == layer + "mlp.experts.linear_fc2.weight{expert}"
    assert expert["checkpoint"] == (
        "decoder.layers.mlp.experts.experts.linear_fc2.weight[{layer}][{expert}]"
    )


def test_an_unknown_type_is_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert bridge.main(["families", "--names", "qwen4"]) == 2
    assert "nearest" in capsys.readouterr().err
