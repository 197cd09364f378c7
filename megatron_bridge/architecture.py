"""Is the model that Megatron builds the one that `config.json` describes? Compared fact by fact.

One side is read off the modules of the built model by a rank of its own, the other from
`config.json` by `facts`, which knows nothing of how the model was configured.
"""

from __future__ import annotations

import json
import math
import tempfile
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from megatron_bridge import facts
from megatron_bridge.launch.local import LocalLauncher
from megatron_bridge.layouts import ModelShape
from megatron_bridge.mapping import Config, Family

RELATIVE = 1e-4
"""Frequencies are computed in float32 on one side; their scalings lose a few digits of it."""

Built = dict[str, Any]
"""What the rank tells of a model: facts, parameters, and how many of them are padding."""


class Building:
    """Builds a model and reads it, beside whatever the caller does meanwhile.

    Leaving the block ends the rank; `result` waits for it.
    """

    def __init__(self, family: Family, config: Config) -> None:
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._built: Future[dict[str, Built]] = self._pool.submit(
            build, {"model": (family, config)}, self._stop
        )

    def result(self) -> Built:
        """Return what was read; raises what the launcher raises."""
        return self._built.result()["model"]

    def __enter__(self) -> Building:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()


def build(
    models: Mapping[str, tuple[Family, Config]], stop: threading.Event | None = None
) -> dict[str, Built]:
    """Build models on one rank, without weights, and return what each of them is.

    Args:
        models: families and configs by any name.
        stop: ends the rank when it is set.
    """
    jobs = {
        name: _job(family.megatron_config(c), family, c) for name, (family, c) in models.items()
    }
    with tempfile.TemporaryDirectory(prefix="megaline-") as folder:
        spec, out = Path(folder) / "spec.json", Path(folder) / "built.json"
        spec.write_text(json.dumps({"models": jobs, "out": str(out)}), encoding="utf-8")
        LocalLauncher(alone=True).run(
            "megatron_bridge.worker.architecture", spec, 1, lambda: _end_if(stop)
        )
        built: dict[str, Built] = json.loads(out.read_text(encoding="utf-8"))
        return built


def compare(
    config: Config,
    family: Family,
    shape: ModelShape,
    built: Built,
    settled: Collection[str] = (),
) -> dict[str, Any]:
    """Return the section "architecture" of a certificate, with its problems.

    Args:
        config: the `config.json` that the model must agree with.
        family: its rows say how many parameters there must be.
        shape: sizes of the rows.
        built: what was built.
        settled: facts that differ by intent, because the weights make up for it.
    """
    found = built["facts"]
    expected = {n: value for n, value in facts.expected(config).items() if n not in settled}
    problems = [
        f"{name}: config.json says {_short(value)}, the built model has {_short(found.get(name))}"
        for name, value in expected.items()
        if not same(value, found.get(name, facts.ABSENT))
    ]
    true = replace(shape, padded_vocab=shape.vocab)
    counted = sum(math.prod(map(true.size, bound.row.sizes)) for bound in family.expand(true))
    parameters = built["parameters"] - built["padding"]
    if parameters != counted:
        problems.append(f"the built model has {parameters:,} parameters, the rows {counted:,}")
    return {
        "problems": problems,
        "compared": {name: expected[name] for name in sorted(expected)},
        "not_compared": sorted(found.keys() - expected.keys()),
        "parameters": {"built": parameters, "rows": counted, "padding": built["padding"]},
    }


def same(one: Any, other: Any) -> bool:
    """True for equal facts; numbers that are no counts may differ by rounding."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (one, other))
    if numbers and (isinstance(one, float) or isinstance(other, float)):
        return math.isclose(one, other, rel_tol=RELATIVE)
    return type(one) is type(other) and one == other


def _job(fields: Mapping[str, Any], family: Family, config: Config) -> dict[str, Any]:
    return {
        "fields": fields,
        "vocab_size": family.shape(config).vocab,
        "longest": fields["max_sequence_length"],
    }


def _end_if(stop: threading.Event | None) -> None:
    if stop is not None and stop.is_set():
        raise InterruptedError("nobody waits for this model any more")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:57]}..."
