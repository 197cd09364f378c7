"""Runs Megatron-LM's own tools out of its source tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_SECONDS = 240
_BOTH = ("--json-keys", "text", "title")

CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "eod": ("documents", (*_BOTH, "--append-eod")),
    "plain": ("documents", ()),
    "sentences": ("sentences", (*_BOTH, "--append-eod", "--split-sentences")),
}
"""By name: the input, and the tool's flags."""


def run(tree: Path, tool: str, *arguments: str | Path, cwd: Path, home: Path) -> None:
    """Run `tools/TOOL`; its processes neither ask the network nor outlive their time."""
    environment = {
        **os.environ, "PYTHONPATH": str(tree), "HOME": str(home), "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "",
        # Nobody answers there; the tool asks for a model of sentences that it has.
        "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9",
    }  # fmt: skip
    environment.pop("NLTK_DATA", None)
    command = [sys.executable, str(tree / "tools" / tool), *map(str, arguments)]
    with open(home / "log", "w+") as log:
        # Its parent waits for ever for a child that died: the whole group has its time.
        child = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = child.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, 9)
                child.wait()
        log.seek(0)
        told = log.read()
    if code != 0 or "Traceback" in told:
        raise RuntimeError(f"{tool} ended with {code}:\n{told[-4000:]}")


def preprocess(
    tree: Path, tokenizer: Path, source: Path, out: Path, *flags: str, workers: int, home: Path
) -> None:
    """Run preprocess_data.py; for a folder of vocab.json and merges.txt as GPT2BPETokenizer."""
    if "--split-sentences" in flags:
        sentence_model(home)
    gpt2 = (tokenizer / "merges.txt").is_file()
    if gpt2:
        # The tool loads `gpt2` from the hub, or from a folder of that name.
        (home / "gpt2").mkdir(exist_ok=True)
        for name in ("vocab.json", "merges.txt"):
            (home / "gpt2" / name).write_bytes((tokenizer / name).read_bytes())
        (home / "gpt2" / "tokenizer_config.json").write_text(
            '{"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}'
        )
        kind = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", "gpt2/vocab.json"]
        kind += ["--merge-file", "gpt2/merges.txt"]
    else:
        kind = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(tokenizer)]
    arguments = ["--input", source, "--output-prefix", out, "--workers", str(workers), *kind]
    for _ in range(2 if "--split-sentences" in flags else 1):
        # The first time it only splits sentences, and ends.
        run(tree, "preprocess_data.py", *arguments, *flags, cwd=home, home=home)


def sentence_model(home: Path) -> None:
    """Put nltk's English model where nltk looks for its download."""
    from nltk.tabdata import TabEncoder

    from tasks.core import punkt

    parameters = punkt.load("english")._params
    folder = home / "nltk_data/tokenizers/punkt_tab/english"
    folder.mkdir(parents=True, exist_ok=True)
    encoder = TabEncoder()
    for name, text in {
        "collocations.tab": encoder.tups2tab(parameters.collocations),
        "sent_starters.txt": encoder.set2txt(parameters.sent_starters),
        "abbrev_types.txt": encoder.set2txt(parameters.abbrev_types),
        "ortho_context.tab": encoder.ivdict2tab(parameters.ortho_context),
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
