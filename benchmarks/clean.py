"""Clean a Wikipedia dump, and compare with what else does it, in pairs of the same run.

    python benchmarks/clean.py --scratch build/bench [--rounds 3] [--only quality] [--json]

- The tool: our stage's `write_parts` and WikiExtractor 3.1.0, whole processes with two workers
  each, in turn. Ours with `templates: dump` beside its default, which reads the dump for templates
  first; ours with `templates: table` beside its `--no-templates`. "markup" is the same job, with
  our repair and our filters off; "defaults" does all that our stage does.
- Repair: ours and ftfy in one process, on the text of the articles, which must come out the same.
- Filters: ours and datatrove's Gopher quality, Gopher repetition and C4 filters.
- Quality, on the same pages: markup that is left in the text, the share of WikiExtractor's
  words that we keep, and that of mwparserfromhell's on pages without templates.

The dumps are gensim's sample of the English Wikipedia, grown to 100 MB of XML in one bz2 stream, as
it is ("long") and with its articles in pages of 3 kB ("short"). The peers get an environment of
their own in the scratch folder. `whole` is a process from its start to its end, `cpu` its processor
time and that of all that it started; goals take `whole`, which on a busy machine says little.
"""

from __future__ import annotations

import argparse
import bz2
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import clean_data
import clean_quality

from tasks.core.sources import locate

CONTENDERS = Path(__file__).with_name("clean_contenders.py")
PEERS = (
    "wikiextractor==3.1.0",
    "datatrove[processing]==0.10.1",
    "spacy",
    "mwparserfromhell==0.7.2",
)
MARKUP = {
    "repair": False,
    "unicode_form": "none",
    "quality_filters": False,
    "max_word_length": 1 << 30,
}
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "WikiExtractor": ("wikiextractor", {}),
    "dump, markup": ("ours", {"templates": "dump", **MARKUP}),
    "dump, defaults": ("ours", {"templates": "dump"}),
    "WikiExtractor --no-templates": ("wikiextractor", {"more": ["--no-templates"]}),
    "table, markup": ("ours", {"templates": "table", **MARKUP}),
    "table, defaults": ("ours", {"templates": "table"}),
}
PAIRS = (
    ("dump, markup", "WikiExtractor", 0.35),
    ("dump, defaults", "WikiExtractor", 0.35),
    ("table, markup", "WikiExtractor --no-templates", 0.50),
    ("table, defaults", "WikiExtractor --no-templates", 0.50),
)
PARTS = ("tools", "repair", "filters", "quality")
REPAIR_GOAL, FILTER_GOAL = 4.0, 20.0
# Characters that are filtered: datatrove takes its time.
FILTERED = 1_000_000

Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--copies", type=int, default=17, help="of 6 MB of XML each")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts of it")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    options = parser.parse_args()
    bench = Bench(options.scratch.resolve())
    found = bench.measure(options.copies, options.rounds, options.only)
    if "quality" in options.only:
        found["quality"] = clean_quality.measure(bench)
    print(json.dumps(found, indent=2) if options.json else table(found))


class Bench:
    """Runs contenders in a scratch folder.

    Args:
        scratch: keeps the dumps and the peers' environment for the next run.
    """

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        self._peers = scratch / "peers" / "bin" / "python"
        if not self._peers.exists():
            subprocess.run([sys.executable, "-m", "venv", scratch / "peers"], check=True)
            subprocess.run([self._peers, "-m", "pip", "install", "--quiet", *PEERS], check=True)

    def measure(self, copies: int, rounds: int, parts: Sequence[str]) -> Figures:
        """All pairs, on both dumps."""
        sample = clean_data.read(locate(f"package://{clean_data.SAMPLE}"))
        found: Figures = {
            "date": datetime.now(UTC).date().isoformat(),
            "cores": len(os.sched_getaffinity(0)),
            "versions": {name: version(name) for name in ("ftfy", "lxml", "numpy")},
            "rounds": rounds,
            "dumps": {},
        }
        for kind, dump in (("long", sample), ("short", clean_data.shortened(sample))):
            one = found["dumps"][kind] = {}
            if "tools" in parts:
                path = self.dump(f"{kind}-{copies}", clean_data.grown(dump, copies))
                one |= self._tools(path, rounds)
            if "repair" in parts:
                one["repair"] = self._repair(self._texts(kind, dump))
            if "filters" in parts:
                one["filters"] = self._filters(self._texts(kind, dump), rounds)
        return found

    def dump(self, name: str, dump: clean_data.Dump) -> Path:
        """A dump as a file of one bz2 stream."""
        path = self.scratch / f"{name}.xml.bz2"
        if not path.exists():
            path.write_bytes(bz2.compress(dump.text().encode()))
        return path

    def run(self, name: str, source: Path, out: Path, options: Figures) -> Figures:
        """Run one contender in a process of its own; return its clocks."""
        ours = name in ("ours", "filters", "repair")
        python = sys.executable if ours else self._peers
        command = [python, CONTENDERS, name, source, out, json.dumps(options)]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        with (self.scratch / "log").open("w+") as log:
            started = time.perf_counter()
            child = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment | {"OMP_NUM_THREADS": "1"}
            )
            _, status, usage = os.wait4(child.pid, 0)
            seconds = time.perf_counter() - started
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode:
                log.seek(0)
                raise SystemExit(f"{name} failed: {log.read()[-2000:]}")
        return {"whole": seconds, "cpu": usage.ru_utime + usage.ru_stime}

    def documents(self, name: str, source: Path, options: Figures) -> dict[str, str]:
        """The texts that a tool makes of a dump, by the pages' ids."""
        out = self.folder()
        self.run(name, source, out, options)
        # WikiExtractor makes folders of files without an ending.
        files = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".json"]
        rows = (json.loads(line) for path in files for line in path.open(encoding="utf-8"))
        return {row["id"]: row["text"] for row in rows}

    def folder(self) -> Path:
        """An empty folder for a contender to write into."""
        for path in self.scratch.glob("out*"):
            shutil.rmtree(path)
        out = self.scratch / "out"
        out.mkdir()
        return out

    def told(self, name: str, texts: Path, options: Figures) -> Figures:
        """What a contender says that reads texts."""
        out = self.scratch / "told.json"
        self.run(name, texts, out, options)
        found: Figures = json.loads(out.read_text(encoding="utf-8"))
        return found

    def _tools(self, path: Path, rounds: int) -> Figures:
        runs: dict[str, list[Figures]] = {name: [] for name in TOOLS}
        for number in range(rounds):
            print(f"{path.name}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for name, (contender, options) in TOOLS.items():
                path.read_bytes()
                runs[name].append(self.run(contender, path, self.folder(), options))
        return {
            "bz2_bytes": path.stat().st_size,
            "tools": {
                name: {clock: middle(run[clock] for run in found) for clock in ("whole", "cpu")}
                for name, found in runs.items()
            },
            "pairs": [
                {
                    "ours": mine,
                    "peer": peer,
                    **{clock: ratio(runs[mine], runs[peer], clock) for clock in ("whole", "cpu")},
                    "at_most": limit,
                }
                for mine, peer, limit in PAIRS
            ],
        }

    def _texts(self, kind: str, dump: clean_data.Dump) -> Path:
        """Our texts of a dump's articles, not repaired yet."""
        path = self.scratch / f"{kind}.json"
        options = {"templates": "table", **MARKUP}
        texts = self.documents("ours", self.dump(f"{kind}-1", dump), options)
        path.write_text(json.dumps(list(texts.values())), encoding="utf-8")
        return path

    def _repair(self, texts: Path) -> Figures:
        found = self.told("repair", texts, {})
        times = statistics.median(theirs / ours for ours, theirs in found.pop("rounds"))
        return {**found, "times": round(times, 2), "at_least": REPAIR_GOAL}

    def _filters(self, texts: Path, rounds: int) -> Figures:
        documents = json.loads(texts.read_text(encoding="utf-8"))
        some = texts.with_name(f"some-{texts.name}")
        # Evenly over all lengths.
        step = max(1, sum(map(len, documents)) // FILTERED)
        chosen = sorted(documents, key=len)[::step]
        some.write_text(json.dumps(chosen), encoding="utf-8")
        pairs = [
            (self.told("filters", some, {}), self.told("datatrove", some, {}))
            for _ in range(rounds)
        ]
        times = statistics.median(theirs["seconds"] / ours["seconds"] for ours, theirs in pairs)
        return {
            "texts": len(chosen),
            "bytes": sum(len(text.encode()) for text in chosen),
            "seconds": [middle(pair[side]["seconds"] for pair in pairs) for side in (0, 1)],
            "times": round(times, 1),
            "at_least": FILTER_GOAL,
        }


def middle(values: Iterator[float]) -> float:
    """The median, rounded for reading."""
    return round(statistics.median(values), 3)


def ratio(ours: list[Figures], peer: list[Figures], key: str) -> float:
    """The median over the rounds of ours by the peer's."""
    return middle(a[key] / b[key] for a, b in zip(ours, peer, strict=True))


def table(found: Figures) -> str:
    """Return the figures in lines of text."""
    lines = [f"medians of {found['rounds']} rounds, {found['cores']} cores"]
    for kind, dump in found["dumps"].items():
        lines += ["", f"{kind} pages"]
        for name, one in dump.get("tools", {}).items():
            lines.append(f"{name:30} {one['whole']:8.2f} s, cpu {one['cpu']:8.2f} s")
        for pair in dump.get("pairs", ()):
            what = f"{pair['ours']}, of {pair['peer']}"
            told = f"{what:48} {pair['whole']:.3f}, of its cpu {pair['cpu']:.3f}"
            lines.append(f"{told}, at most {pair['at_most']}: {met(pair)}")
        if one := dump.get("repair"):
            same = f"{one['same']} of {one['texts']} texts the same, {one['changed']} changed"
            lines.append(f"repair: {one['times']} times ftfy's speed ({same}): {met(one)}")
        if one := dump.get("filters"):
            lines.append(f"filters: {one['times']} times datatrove's speed: {met(one)}")
    for name, one in found.get("quality", {}).items():
        lines += ["", f"quality, {name}: {json.dumps(one)}"]
    return "\n".join(lines)


def met(goal: Figures) -> str:
    """Whether a goal is reached."""
    if "at_most" in goal:
        return "met" if goal["whole"] <= goal["at_most"] else "MISSED"
    same = goal.get("same", goal["texts"]) == goal["texts"]
    return "met" if same and goal["times"] >= goal["at_least"] else "MISSED"


if __name__ == "__main__":
    main()
