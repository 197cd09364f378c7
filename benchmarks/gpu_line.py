"""Import, train and export a model on one GPU in bfloat16, and compare both sides' losses.

Hugging Face reads the exported folder alone; nothing of it passes through `megatron_bridge`. The
control is the same folder with another rotary base: a comparison that did not see it would see
nothing.

    python benchmarks/gpu_line.py HF_DIR TRAIN_PREFIX HELD_OUT.bin OUT --end-of-document 0

Prints one JSON document. Needs no Prefect.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from megatron_bridge import TrainConfig, TrainSpec, export_hf, import_hf, runs

WINDOWS, LENGTH = 16, 513  # 8,192 predicted tokens
CONTROL_THETA = 1e4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("hf_dir", type=Path)
    parser.add_argument("train_prefix", type=Path)
    parser.add_argument("held_out", type=Path, help="a .bin of uint16 ids")
    parser.add_argument("out", type=Path)
    parser.add_argument("--end-of-document", type=int, required=True)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    ids = numpy.fromfile(options.held_out, numpy.uint16, WINDOWS * LENGTH).astype(int)
    windows = ids.reshape(WINDOWS, LENGTH).tolist()

    seconds: dict[str, float] = {}
    start, exported = options.out / "start", options.out / "exported"
    _timed(seconds, "import", import_hf, options.hf_dir, start, dtype="bfloat16")
    spec = TrainSpec(
        config=TrainConfig(
            steps=options.steps,
            sequence_length=2048,
            micro_batch_size=4,
            global_batch_size=8,
            warmup_steps=10,
            dtype="bfloat16",
            checkpoint_every=options.steps,
        ),
        checkpoint=start.resolve(),
        train_data=options.train_prefix.resolve(),
        end_of_document=options.end_of_document,
        run_dir=(options.out / "run").resolve(),
    )
    trained = _timed(seconds, "train", runs.train, spec)
    checkpoint = Path(trained.pop("checkpoint"))
    _timed(seconds, "export", export_hf, checkpoint, exported)

    losses = {"hugging_face_start": _hf_loss(start / "hf", windows, options.hf_dir)}
    for dtype in ("bfloat16", "float32"):
        worker = runs.token_losses(checkpoint, windows, dtype=dtype)
        losses[f"megatron_{dtype}"] = _mean(worker)
        losses[f"hugging_face_{dtype}"] = _hf_loss(exported, windows, dtype=dtype)
    losses["control_bfloat16"] = _hf_loss(exported, windows, theta=CONTROL_THETA)
    log = [json.loads(line) for line in (options.out / "run/log.jsonl").read_text().splitlines()]
    steady = log[len(log) // 2 :]
    print(
        json.dumps(
            {
                "date": datetime.now(UTC).date().isoformat(),
                "device": torch.cuda.get_device_name(),
                "versions": _versions(),
                "seconds": seconds,
                "train": trained,
                "steady_tokens_per_second": round(
                    sum(line["tokens"] for line in steady) / sum(line["seconds"] for line in steady)
                ),
                "loss_by_step": {line["step"]: round(line["loss"], 4) for line in log[::10]},
                "tokens": WINDOWS * (LENGTH - 1),
                "losses": losses,
                "gap_bfloat16": abs(losses["megatron_bfloat16"] - losses["hugging_face_bfloat16"]),
                "gap_float32": abs(losses["megatron_float32"] - losses["hugging_face_float32"]),
                "gap_control": abs(losses["megatron_bfloat16"] - losses["control_bfloat16"]),
            },
            indent=1,
        )
    )


def _hf_loss(
    folder: Path,
    windows: list[list[int]],
    weights: Path | None = None,
    dtype: str = "bfloat16",
    theta: float | None = None,
) -> float:
    config = AutoConfig.from_pretrained(folder)
    if theta is not None:
        config.rope_parameters = {**config.rope_parameters, "rope_theta": theta}
    model = AutoModelForCausalLM.from_pretrained(
        weights or folder, config=config, dtype=getattr(torch, dtype)
    )
    model = model.cuda().eval()
    losses = []
    with torch.inference_mode():
        for window in windows:
            ids = torch.tensor([window], device="cuda")
            logits = model(ids, use_cache=False).logits[0, :-1].float()
            chosen = logits.gather(1, ids[0, 1:, None])[:, 0]
            losses.append((logits.logsumexp(1) - chosen).tolist())
    return _mean(losses)


def _mean(losses: list[list[float]]) -> float:
    return math.fsum(chain.from_iterable(losses)) / sum(map(len, losses))


def _timed(seconds: dict[str, float], name: str, work: Any, *args: Any, **options: Any) -> Any:
    started = time.perf_counter()
    answer = work(*args, **options)
    seconds[name] = round(time.perf_counter() - started, 1)
    return answer


def _versions() -> dict[str, str]:
    names = ("torch", "megatron-core", "transformer-engine", "transformers")
    return {name: version(name) for name in names}


if __name__ == "__main__":
    main()
