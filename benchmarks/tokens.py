"""Tokenize and merge, and compare with Megatron-LM's own tools, in pairs of the same run.

    python benchmarks/tokens.py --megatron-lm DIR --tokenizer DIR --scratch build/bench
        [--megabytes 45 450] [--rounds 3] [--only tokenize] [--copies 17] [--json]

Megatron-LM's tools run out of the source tree DIR with this Python, which needs what they import
(megatron-core's requirements, transformers, gigatoken, awkward). TOKENIZER is a folder that
`AutoTokenizer` loads. The corpus is gensim's sample of the English Wikipedia as JSON lines, grown.

- `ours`: `megaline tokenize --append-eod --workers 2`, with a cache of tokenizers in SCRATCH, which
  the first use of this one fills; `ours, first use` with an empty one; `ours, own encoder` with no
  fast encoder allowed
- `classic`: preprocess_data.py, two workers (first size only)
- `fast`: preprocess_data_fast.py with gigatoken, which uses all cores
- `merge small`: 8 M documents of 1 to 19 tokens in 8 datasets; `merge large`: 1.6 GB in 4
- `end to end`: the same dump, 6 MB of XML a copy in one bz2 stream, to `.bin` and `.idx` in one
  chain: the stage `clean` (defaults, but `templates: dump`) and `tokenize`; WikiExtractor 3.1.0
  (defaults, two processes) and preprocess_data_fast.py. The texts differ, so do the ids.

Whole processes, imports included. `cpu` is the processor time of a process and of all that it
started; on a busy machine take that. Memory is the sum, over the process and its descendants, of
each one's largest resident set. The files of all contenders are compared byte for byte, but not
those of `end to end`. WikiExtractor gets an environment of its own in SCRATCH, which is kept for
the next run.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import clean_data
import numpy as np
import tokens_chain
from conversion import environment, middle, watch

from tasks.core import sources
from tasks.tokens.indexed import Writer, best_dtype

ROOT = Path(__file__).resolve().parents[1]
OWN = """
import sys
from tasks.tokens import preprocess
from tasks.tokens.encoders.choice import Choice
if __name__ == "__main__":
    preprocess.choose = lambda spec, sample: Choice(spec, "no fast one allowed")
    from flows.cli import main
    main(sys.argv[1:])
"""
GOALS = {
    "time, of the fast tool": {0: 0.10, 1: 0.30},
    "MiB": 400,
    "time of our own encoder, of the classic tool": 0.5,
    "merge small": (0.10, 0.25),
    "merge large": (0.25, 0.25),
    "end to end": 0.25,
}
FIRST_USE = "ours, first use"
PARTS = ("tokenize", "merge", "end to end")

Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megatron-lm", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True, help="an existing folder")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[45, 450])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--copies", type=int, default=17, help="of the sample, end to end")
    parser.add_argument("--json", action="store_true", help="print the JSON document only")
    options = parser.parse_args()
    found: Figures = {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: version(name) for name in ("torch", "transformers", "gigatoken")},
        "rounds": options.rounds,
        "goals": [],
    }
    with tempfile.TemporaryDirectory(prefix="tokens-", dir=options.scratch) as folder:
        bench = Bench(Path(folder).absolute(), options.megatron_lm.absolute(), options.rounds)
        tokenizer = options.tokenizer.absolute()
        if options.only in (None, "tokenize"):
            found["goals"] += bench.tokenize(tokenizer, options.megabytes)
        if options.only in (None, "merge"):
            found["goals"] += bench.merge()
        if options.only in (None, "end to end"):
            found["goals"] += bench.end_to_end(tokenizer, options.copies)
        found["contenders"] = bench.figures
    print(json.dumps(found, indent=1) if options.json else table(found))


class Bench:
    """Contenders in turn, their figures, and their files compared."""

    def __init__(self, scratch: Path, tree: Path, rounds: int) -> None:
        self.scratch, self.tree, self.rounds = scratch, tree, rounds
        self.figures: dict[str, Figures] = {}

    def tokenize(self, tokenizer: Path, megabytes: list[int]) -> Iterator[Figures]:
        text = list(texts())
        (self.scratch / "own.py").write_text(OWN)
        for number, size in enumerate(megabytes):
            source = self.scratch / f"{size}.jsonl"
            write(source, text, size * 10**6)
            ours = ["tokenize", source, "--tokenizer", tokenizer, "--append-eod"]
            ours += ["--workers", "2", "--out", "OUT"]
            theirs = ["--input", source, "--append-eod", "--output-prefix", "OUT"]
            theirs += ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", tokenizer]
            names = {
                "ours": ["-m", "flows.cli", *ours],
                "fast": [self.tree / "tools/preprocess_data_fast.py", *theirs, "--use-gigatoken"],
            }
            if number == 0:
                names[FIRST_USE] = names["ours"]
                names["ours, own encoder"] = [self.scratch / "own.py", *ours]
                classic = self.tree / "tools/preprocess_data.py"
                names["classic"] = [classic, *theirs, "--workers", "2"]
                # It fills the cache of tokenizers.
                self.run("once", names["ours"], self.scratch / "once")
            runs = self.all({f"{name} {size} MB": command for name, command in names.items()})
            mine, fast = runs[f"ours {size} MB"], runs[f"fast {size} MB"]
            limit = GOALS["time, of the fast tool"].get(number, 0.30)
            yield goal(f"{size} MB: time, of the fast tool", mine, fast, limit)
            peak = max(run["memory"] for run in mine)
            yield {"goal": f"{size} MB: MiB", "ratio": peak, "at_most": 400, "met": peak <= 400}
            if number == 0:
                first = runs[f"{FIRST_USE} {size} MB"]
                yield goal(f"{size} MB, first use: time, of the fast tool", first, fast, limit)
                what = "time of our own encoder, of the classic tool"
                own, classic = runs[f"ours, own encoder {size} MB"], runs[f"classic {size} MB"]
                yield goal(f"{size} MB: {what}", own, classic, GOALS[what])

    def merge(self) -> Iterator[Figures]:
        draw = np.random.default_rng(0)
        for name, datasets, documents, longest in (
            ("merge small", 8, 1_000_000, 20),
            ("merge large", 4, 4_000, 100_000),
        ):
            folder = self.scratch / name.replace(" ", "-")
            folder.mkdir()
            for number in range(datasets):
                make(folder / f"part-{number}", draw.integers(1, longest, documents), draw)
            tool = self.tree / "tools/merge_datasets.py"
            runs = self.all({
                f"ours, {name}": ["-m", "flows.cli", "merge", "OUT", folder],
                f"theirs, {name}": [tool, "--input", folder, "--output-prefix", "OUT"],
            })  # fmt: skip
            mine, theirs = runs.values()
            time_limit, memory_limit = GOALS[name]
            yield goal(f"{name}: time", mine, theirs, time_limit)
            yield goal(f"{name}: memory", mine, theirs, memory_limit, ("memory",))

    def end_to_end(self, tokenizer: Path, copies: int) -> Iterator[Figures]:
        scripts = tokens_chain.scripts(self.scratch, self.tree, tokenizer, copies)
        mine, theirs = self.all(scripts, same=False).values()
        yield goal("end to end: time", mine, theirs, GOALS["end to end"])

    def all(self, commands: dict[str, list[Any]], same: bool = True) -> dict[str, list[Figures]]:
        """Each contender once a round; what they wrote is compared."""
        runs: dict[str, list[Figures]] = {name: [] for name in commands}
        for number in range(self.rounds):
            wrote: dict[str, list[Path]] = {}
            for name, command in commands.items():
                print(f"round {number + 1} of {self.rounds}: {name}", file=sys.stderr, flush=True)
                out = self.scratch / f"out-{len(wrote)}"
                out.mkdir()
                runs[name].append(self.run(name, command, out / "x"))
                wrote[name] = sorted(path for path in out.iterdir() if path.suffix != ".json")
            first, *others = wrote.values()
            for other in others if same else ():
                for one, two in zip(first, other, strict=True):
                    if not filecmp.cmp(one, two, shallow=False):
                        raise SystemExit(f"{one} and {two} differ")
            for files in wrote.values():
                shutil.rmtree(files[0].parent)
        for name, found in runs.items():
            self.figures[name] = {key: middle(run[key] for run in found) for key in found[0]}
        return runs

    def run(self, name: str, command: list[Any], out: Path) -> Figures:
        """One contender in a process of its own."""
        given = [str(out) if part == "OUT" else str(part) for part in command]
        ours = given[0] == "-m" or given[0].endswith("own.py")
        env = {**environment(), "HF_HUB_OFFLINE": "1"}
        cache = self.scratch / ("empty" if FIRST_USE in name else "cache")
        if FIRST_USE in name:
            shutil.rmtree(cache, ignore_errors=True)
        env["XDG_CACHE_HOME"] = str(cache)
        if given[0] != "sh":
            given.insert(0, sys.executable)
            env["PYTHONPATH"] = str(ROOT if ours else self.tree)
        with (self.scratch / "log").open("w+") as log:
            started = time.perf_counter()
            child = subprocess.Popen(given, cwd=self.scratch, env=env, stdout=log, stderr=log)
            memory, _, usage, status = watch(child.pid)
            seconds = time.perf_counter() - started
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode:
                log.seek(0)
                raise SystemExit(f"{name} failed: {log.read()[-2000:]}")
        ids = sum(file.stat().st_size for file in out.parent.glob("*.bin")) / 1e6
        cpu = usage.ru_utime + usage.ru_stime
        return {"whole": seconds, "cpu": cpu, "memory": memory, "megabytes of ids": ids}


def texts() -> Iterator[str]:
    """The articles of gensim's sample, as markup."""
    dump = clean_data.read(sources.locate(f"package://{clean_data.SAMPLE}"))
    for page in clean_data.grown(dump, 17).pages:
        if (found := clean_data._TEXT.search(page)) and len(found[2]) > 500:
            yield clean_data.unescape(found[2])


def write(path: Path, text: list[str], size: int) -> None:
    """JSON lines of so many bytes, articles again and again."""
    with path.open("w", encoding="utf-8") as file:
        while True:
            for one in text:
                file.write(json.dumps({"text": one}, ensure_ascii=False) + "\n")
                if file.tell() >= size:
                    return


def make(prefix: Path, lengths: Any, draw: Any) -> None:
    """A dataset of random ids."""
    lengths = lengths.astype(np.int32)
    with Writer(prefix, best_dtype(50_257)) as writer:
        for part in np.array_split(lengths, 16):
            writer.add(draw.integers(0, 50_257, int(part.sum()), np.uint16), part)


def goal(
    what: str, ours: list[Figures], peer: list[Figures], at_most: float,
    clocks: tuple[str, ...] = ("whole", "cpu"),
) -> Figures:  # fmt: skip
    """The medians of the rounds' ratios; the first clock decides."""
    ratios = {
        key: middle(a[key] / b[key] for a, b in zip(ours, peer, strict=True)) for key in clocks
    }
    value = ratios[clocks[0]]
    return {"goal": what, "ratio": value, **ratios, "at_most": at_most, "met": value <= at_most}


def table(found: Figures) -> str:
    """Return the figures in lines of text."""
    lines = [f"medians of {found['rounds']} rounds, {found['cores']} cores", ""]
    lines.append(f"{'':32}{'whole s':>9}{'cpu s':>9}{'MiB':>7}{'MB of ids':>11}")
    for name, one in found["contenders"].items():
        clocks = f"{one['whole']:9.2f}{one['cpu']:9.2f}{one['memory']:7.0f}"
        lines.append(f"{name:32}{clocks}{one['megabytes of ids']:11.1f}")
    lines.append("")
    for one in found["goals"]:
        by_cpu = f" (processor time {one['cpu']})" if "cpu" in one else ""
        met = "met" if one["met"] else "MISSED"
        lines.append(f"{one['goal']}: {one['ratio']}{by_cpu}, at most {one['at_most']}: {met}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
