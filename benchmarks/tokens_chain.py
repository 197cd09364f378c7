"""From a dump to `.bin` and `.idx` in a chain of processes, for `tokens.py`: ours, and the peers'.

Ours is the stage `clean` with `templates: dump` and `megaline tokenize`; theirs WikiExtractor with
its defaults and Megatron-LM's preprocess_data_fast.py. Two processes each, where they have a say.
"""

from __future__ import annotations

import bz2
import json
import shlex
import subprocess
import sys
from pathlib import Path

import clean
import clean_data

from tasks.core import sources

ROOT = Path(__file__).resolve().parents[1]
# `$0` is the prefix of what comes out.
CLEAN = """
set -e
mkdir "$0.text"
{python} {contenders} {name} {dump} "$0.text" {options}
"""
OURS = """
PYTHONPATH={root} {python} -m flows.cli tokenize "$0.text"/part-*.jsonl --append-eod \\
    --tokenizer {tokenizer} --workers 2 --out "$0"
"""
THEIRS = """
cat "$0.text"/*/wiki_* >"$0.jsonl"
PYTHONPATH={tree} {python} {tree}/tools/preprocess_data_fast.py --input "$0.jsonl" --append-eod \\
    --output-prefix "$0" --tokenizer-type HuggingFaceTokenizer --tokenizer-model {tokenizer} \\
    --use-gigatoken
"""


def scripts(scratch: Path, tree: Path, tokenizer: Path, copies: int) -> dict[str, list[str]]:
    """Both chains as commands; the last part, `OUT`, stands for their prefix.

    Args:
        scratch: gets the dump; its parent keeps the peers' environment for the next run.
        tree: Megatron-LM's source.
        tokenizer: a folder that `AutoTokenizer` loads.
        copies: of the sample, 6 MB of XML each.
    """
    dump = scratch / "dump.xml.bz2"
    sample = clean_data.read(sources.locate(f"package://{clean_data.SAMPLE}"))
    dump.write_bytes(bz2.compress(clean_data.grown(sample, copies).text().encode()))
    told = {"contenders": clean.CONTENDERS, "dump": dump, "tree": tree, "tokenizer": tokenizer}
    found = {}
    for name, pair, python, then in (
        ("ours, end to end", "dump, defaults", sys.executable, OURS),
        ("peers, end to end", "WikiExtractor", peers(scratch.parent), THEIRS),
    ):
        contender, options = clean.TOOLS[pair]
        words = {**told, "root": ROOT, "name": contender, "options": json.dumps(options)}
        quoted = {key: shlex.quote(str(word)) for key, word in words.items()}
        steps = ((CLEAN, python), (then, sys.executable))
        script = "".join(step.format(**quoted, python=shlex.quote(str(p))) for step, p in steps)
        found[name] = ["sh", "-c", script, "OUT"]
    return found


def peers(scratch: Path) -> Path:
    """The Python of an environment with WikiExtractor, which is made where it is not there."""
    python = scratch / "wikiextractor" / "bin" / "python"
    if not python.exists():
        (package,) = (peer for peer in clean.PEERS if peer.startswith("wikiextractor"))
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
    return python
