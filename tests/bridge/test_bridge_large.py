"""A model of 4 GB in and out within 1 GB, killed in the middle, by the kernel's own account."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_bridge import families, hf
from megatron_bridge.sources.stored import raw

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "intermediate_size": 5632,
    "vocab_size": 32003,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
MOST_RESIDENT = 1_500_000_000
GROUPS_BEFORE_THE_KILL = 4


def random_model(folder: Path) -> int:
    """Write random weights of `CONFIG` a tensor at a time; return their size in bytes."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    family = families.get("llama")
    shape = family.shape(CONFIG)
    rows = {"q_proj": 2048, "k_proj": 256, "v_proj": 256}
    specs = []
    for bound in family.expand(shape):
        sizes = [shape.size(name) for name in bound.row.sizes]
        for name in bound.hf:
            first = rows.get(name.split(".")[-2], sizes[0] // len(bound.hf))
            first = CONFIG["vocab_size"] if bound.row.sizes[0] == "vocabulary" else first
            specs.append(hf.TensorSpec(name, torch.float32, (first, *sizes[1:])))
    places = hf.prepare(folder, specs)
    random = torch.Generator().manual_seed(1)
    for spec in specs:
        place = places[spec.name]
        with (folder / place.file).open("r+b") as file:
            values = torch.randn(spec.shape, generator=random)
            hf.write_at(file.fileno(), place.offset, raw(values))
    return sum(spec.bytes for spec in specs)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "megatron_bridge", *map(str, arguments), "--memory", "1GB"]


def resident(arguments: list[str]) -> int:
    """Run a command; return the most that one of its processes held in memory, in bytes."""
    child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_maxrss * 1024


def kill_in_the_middle(arguments: list[str], journal: Path) -> None:
    child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, start_new_session=True)
    while len(list(journal.glob("write-*.json"))) < GROUPS_BEFORE_THE_KILL:
        assert child.poll() is None
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def digests(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            found[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_four_gigabytes_in_and_out_within_one(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 25e9:
        pytest.skip("needs 25 GB of disk")
    source = tmp_path / "hf"
    assert random_model(source) > 4e9
    for way, start, out in (
        ("import", source, tmp_path / "ckpt"),
        ("export", tmp_path / "ckpt", tmp_path / "back"),
    ):
        most = resident(command(way, start, out))
        print(f"{way}: {most / 1e6:.0f} MB resident at most")
        assert most < MOST_RESIDENT
        again = tmp_path / f"{way}-again"
        kill_in_the_middle(
            command(way, start, again), tmp_path / f".{again.name}.unfinished" / "journal"
        )
        assert not again.exists()
        assert resident(command(way, start, again)) < MOST_RESIDENT
        assert digests(again) == digests(out)
        shutil.rmtree(again)
    assert digests(tmp_path / "back")["model.safetensors"] == digests(source)["model.safetensors"]
