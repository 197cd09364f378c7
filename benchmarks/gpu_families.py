"""Run every case of tests/families on one GPU in float32 and compare with Hugging Face.

Hugging Face answers on the CPU; Megatron-Core answers on the GPU from the converted checkpoint, on
Transformer Engine's layer spec where it carries the model. The parameters' names in the built model
are compared with those that `python -m megatron_bridge families --names` tells.

    python benchmarks/gpu_families.py OUT.json [--cases NAME ...]

Take the figures in by `python tests/families/make_page.py --engine OUT.json`. Needs neither pytest
nor Prefect. A case that fails is told in the file, and the exit status is then 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "families")]
# Products of float32 in TF32 would differ in the third digit; read when CUDA's libraries start.
os.environ["NVIDIA_TF32_OVERRIDE"] = "0"

# These come after the path and the switch above, which they need.
import family_bench  # noqa: E402
import torch  # noqa: E402
from family_cases import Case  # noqa: E402

from megatron_bridge import families, listing  # noqa: E402

PACKAGES = ("torch", "megatron-core", "transformer-engine", "transformers")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="default: all")
    options = parser.parse_args()
    cases = family_bench.all_cases()
    if options.cases:
        cases = [case for case in cases if case.name in options.cases]
    with tempfile.TemporaryDirectory() as folder:
        found = run(cases, Path(folder))
    result = {
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {name: text for name in PACKAGES if (text := _version(name))},
        "cases": found,
    }
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    for name, figures in found.items():
        print(f"{name}: {json.dumps(figures)}")
    return int(any("error" in figures for figures in found.values()))


def run(cases: list[Case], root: Path) -> dict[str, dict[str, Any]]:
    """Return each case's figures, or its error; one start of one rank runs all of them."""
    found: dict[str, dict[str, Any]] = {}
    chosen = {}
    for number, case in enumerate(cases):
        folder = root / str(number)
        try:
            family_bench.prepare(case, folder)
        except Exception as error:
            found[case.name] = {"error": f"{type(error).__name__}: {error}"}
            continue
        chosen[case.name] = {"folder": str(folder), "gradients": False, "controls": {}}
    job = {"layout": {}, "cases": chosen, "keep_going": True}
    measured = family_bench.launch(root, "gpu", job, 1) if chosen else {}
    by_name = {case.name: case for case in cases}
    found |= {name: _kept(by_name[name], figures) for name, figures in measured.items()}
    return {case.name: found[case.name] for case in cases}


def _kept(case: Case, figures: Mapping[str, Any]) -> dict[str, Any]:
    if "error" in figures:
        return {"error": figures["error"]}
    family = families.get(case.config["model_type"])
    told = set(listing.parameters(family, case.config, engine=figures["engine"]))
    built = set(figures["parameters"])
    return {
        "logits": figures["logits"],
        "spec": "Transformer Engine" if figures["engine"] else "local",
        # A router's bias is a buffer.
        "names_not_told": sorted(built - told),
        "names_not_built": sorted(n for n in told - built if not n.endswith(".expert_bias")),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
