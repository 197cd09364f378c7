"""Convert a random Llama in and out, and compare with what else does it, in pairs of the same run.

    python benchmarks/conversion.py --scratch /dev/shm/bench [--layers 22] [--rounds 5] [--json]

Contenders, each in a process of its own, with a warm page cache and a new output folder that is
removed outside the clock:

- `import` and `export`: ours by the command line, with all that a conversion proves by default;
  `import (library)` and `export (library)` call the same functions, which tells the phases;
- `copy`: the files, by `shutil.copytree`;
- `safetensors`: the library's `load_file` and `save_file`;
- `to_torch`: `from_pretrained`, the packing, `torch.save`; `from_torch` is the reverse;
- `to_torch_dist`: Megatron-Core's own save of the packed model, on one process.

Two clocks: `whole` is the process from its start to its end, imports included; `work` begins when
the imports are done (a library contender's own, not those of processes that it starts). `cpu` is
the processor time of the process and of all that it started. Memory is the sum, over the process
and all its descendants, of each one's largest resident set (the kernel's VmHWM, which `ru_maxrss`
tells too, but there a child's begins with its parent's); pages that two processes share count
twice. Goals are told by both clocks and take `work`. The default model has 1.1 B parameters in
bfloat16, 2.2 GB; the scratch folder needs five times that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONTENDERS = Path(__file__).with_name("conversion_contenders.py")
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Each contender's input folder; in the order of a round.
INPUTS = {
    "import": "model",
    "to_torch_dist": "model",
    "import (library)": "model",
    "to_torch": "model",
    "copy": "model",
    "export": "checkpoint",
    "safetensors": "model",
    "export (library)": "checkpoint",
    "from_torch": "torch",
}
GOALS = (
    ("time, of Megatron-Core's torch_dist save", "to_torch_dist", 1.0),
    ("time, of from_pretrained and torch.save", "to_torch", 0.6),
)
MEMORY_GOAL = 0.10
SAMPLE_SECONDS = 0.02

Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scratch", type=Path, required=True, help="an existing folder")
    parser.add_argument("--layers", type=int, default=22, help="default: 22, 1.1 B parameters")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the JSON document only")
    parser.add_argument("--out", type=Path, help="write the JSON document here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="conversion-", dir=options.scratch) as folder:
        found = measure(Path(folder), options.layers, options.rounds)
    text = json.dumps(found, indent=1)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text if options.json else table(found))


def measure(scratch: Path, layers: int, rounds: int) -> Figures:
    """Make the model, check once what each contender makes of it, and run all in turn."""
    (scratch / "config").mkdir()
    text = json.dumps(CONFIG | {"num_hidden_layers": layers})
    (scratch / "config" / "config.json").write_text(text, encoding="utf-8")
    for name, source, out in (
        ("make", "config", "model"),
        ("import (library)", "model", "checkpoint"),
        ("to_torch", "model", "torch"),
    ):
        run(name, scratch, scratch / source, scratch / out)
    weights = scratch / "model" / "model.safetensors"
    runs: dict[str, list[Figures]] = {name: [] for name in INPUTS}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for name, source in INPUTS.items():
            warm(scratch / source)
            out = scratch / "out"
            runs[name].append(run(name, scratch, scratch / source, out))
            if number == 0:
                check(name, weights, out)
            shutil.rmtree(out)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {
            name: version(name)
            for name in ("torch", "safetensors", "transformers", "megatron-core")
        },
        "model": {"layers": layers, "bytes": weights.stat().st_size},
        "rounds": rounds,
        "contenders": {name: summary(found) for name, found in runs.items()},
        "goals": list(goals(runs)),
        "beside": list(beside(runs)),
    }


def run(name: str, scratch: Path, source: Path, out: Path) -> Figures:
    """Run one contender in a process of its own; return its clocks and its memory."""
    told = scratch / "told.json"
    told.unlink(missing_ok=True)
    out.mkdir()
    command = [sys.executable, str(CONTENDERS), name.split()[0], str(scratch)]
    if name in ("import", "export"):
        command = [sys.executable, "-m", "megatron_bridge", name]
    with (scratch / "log").open("w+") as log:
        started = time.perf_counter()
        child = subprocess.Popen(
            [*command, source, out], cwd=ROOT, env=environment(), stdout=log, stderr=log
        )
        largest, most, usage, status = watch(child.pid)
        seconds = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            log.seek(0)
            raise SystemExit(f"{name} failed: {log.read()[-2000:]}")
    figures = {
        "whole": seconds,
        "cpu": usage.ru_utime + usage.ru_stime,
        "memory": max(largest, usage.ru_maxrss / 1024),
        "processes": most,
    }
    return figures | (json.loads(told.read_text(encoding="utf-8")) if told.exists() else {})


def environment() -> dict[str, str]:
    """Ours, but compiled modules are kept, as they are by default."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def watch(root: int) -> tuple[float, int, Any, int]:
    """Wait for a process; return the sum of all largest resident sets in MiB, and how many."""
    largest: dict[int, float] = {}
    while True:
        for process in descendants(root):
            if size := high_water(process):
                largest[process] = size
        ended, status, usage = os.wait4(root, os.WNOHANG)
        if ended:
            return sum(largest.values()), len(largest), usage, status
        time.sleep(SAMPLE_SECONDS)


def descendants(process: int) -> Iterator[int]:
    """Yield a process and all that it started and that still run."""
    yield process
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            yield from descendants(int(child))


def high_water(process: int) -> float:
    """A process's largest resident set so far, in MiB; 0 when it has ended."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    lines = (line.split() for line in text.splitlines() if line.startswith("VmHWM"))
    return next((int(line[1]) / 1024 for line in lines), 0)


def warm(folder: Path) -> None:
    """Bring the files of a folder into the page cache."""
    block = bytearray(2**22)
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(block):
                    pass


def check(name: str, weights: Path, out: Path) -> None:
    """See that a contender that writes safetensors wrote the model's own file."""
    written = out / weights.name
    if written.exists():
        subprocess.run(["cmp", weights, written], check=True)


def summary(runs: list[Figures]) -> Figures:
    """Medians over the rounds, and the figures of each."""
    keys = [key for key in runs[0] if key != "phases"]
    phases = runs[0].get("phases", {})
    return {
        **{key: middle(run[key] for run in runs) for key in keys},
        "phases": {name: middle(run["phases"][name] for run in runs) for name in phases},
        "rounds": {key: [round(run[key], 3) for run in runs] for key in keys},
    }


def goals(runs: dict[str, list[Figures]]) -> Iterator[Figures]:
    """Each goal with the median of the rounds' ratios, by both clocks."""
    for way in ("import", "export"):
        for what, peer, limit in GOALS:
            value = ratio(runs[f"{way} (library)"], runs[peer], "work")
            yield {
                "goal": f"{way}: {what}",
                "at_most": limit,
                "ratio": value,
                "ratio_whole": ratio(runs[way], runs[peer], "whole"),
                "met": value <= limit,
            }
        value = ratio(runs[way], runs["to_torch"], "memory")
        yield {
            "goal": f"{way}: memory, of from_pretrained and torch.save",
            "at_most": MEMORY_GOAL,
            "ratio": value,
            "met": value <= MEMORY_GOAL,
        }


def beside(runs: dict[str, list[Figures]]) -> Iterator[Figures]:
    """Ratios that no goal asks for."""
    for way, peer in (("import", "copy"), ("export", "copy"), ("export", "from_torch")):
        for clock, mine in (("work", f"{way} (library)"), ("whole", way), ("memory", way)):
            yield {"ours": way, "peer": peer, "of": clock} | {
                "ratio": ratio(runs[mine], runs[peer], clock)
            }


def ratio(ours: list[Figures], peer: list[Figures], key: str) -> float:
    """The median over the rounds of ours by the peer's."""
    return middle(a[key] / b[key] for a, b in zip(ours, peer, strict=True))


def middle(values: Iterator[float]) -> float:
    """The median, rounded for reading."""
    return round(statistics.median(values), 3)


def table(found: Figures) -> str:
    """Return the figures in lines of text."""
    size, rounds = found["model"]["bytes"] / 1e9, found["rounds"]
    lines = [f"{size:.2f} GB, medians of {rounds} rounds, {found['cores']} cores", ""]
    lines.append(f"{'':18}{'whole s':>9}{'work s':>9}{'cpu s':>9}{'MiB':>7}{'processes':>11}")
    for name, one in found["contenders"].items():
        work = f"{one['work']:.2f}" if "work" in one else ""
        numbers = f"{one['whole']:9.2f}{work:>9}{one['cpu']:9.2f}{one['memory']:7.0f}"
        phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in one["phases"].items())
        lines.append(f"{name:18}{numbers}{one['processes']:11.0f}  {phases}".rstrip())
    lines.append("")
    for goal in found["goals"]:
        whole = f" (whole process {goal['ratio_whole']})" if "ratio_whole" in goal else ""
        met = "met" if goal["met"] else "MISSED"
        lines.append(f"{goal['goal']}: {goal['ratio']}{whole}, at most {goal['at_most']}: {met}")
    for one in found["beside"]:
        lines.append(f"beside: {one['ours']} by {one['peer']}, {one['of']}: {one['ratio']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
