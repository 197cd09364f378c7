"""lm-eval, EleutherAI's evaluation harness, on tasks whose data lies on this machine.

It is imported nowhere: it runs as a program of its own, offline, and ends with its parent. A task
is one of its YAML files, complete in itself and without code.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from megatron_bridge.launch import process
from tasks.core import sources
from tasks.core.errors import ConfigError, PipelineError, RetryableError
from tasks.core.fingerprint import DigestCache

Results = dict[str, dict[str, Any]]

_FORMATS = ("csv", "json", "parquet", "text")
_TICK = 0.5
_LINES = 12
_LOG_TAIL = 4096
# A state of its progress bar: "Running loglikelihood requests:  24%|██▍  | 24/100 [00:04<".
_BAR = re.compile(rb"requests: [^\r\n]*?(\d+)/(\d+) \[")


@dataclass(frozen=True)
class Task:
    """An lm-eval task.

    Attributes:
        name: the one that its results go by.
        definition: the YAML file's content, without the data files.
        data: URLs of the data files by split.
    """

    name: str
    definition: dict[str, Any]
    data: dict[str, list[str]]

    def identity(self, digests: DigestCache) -> dict[str, Any]:
        """The task by value: its definition, and its data's names, sizes and digests.

        Raises:
            InputError: a data file is missing.
        """
        data = {
            split: [sources.describe(url, digests).identity() for url in urls]
            for split, urls in self.data.items()
        }
        return {"definition": self.definition, "data": data}

    def write(self, folder: Path) -> None:
        """Write the YAML file that lm-eval reads, with paths in place of URLs."""
        paths = {
            split: [str(sources.locate(url)) for url in urls] for split, urls in self.data.items()
        }
        given = self.definition.get("dataset_kwargs", {})
        whole = {**self.definition, "dataset_kwargs": {**given, "data_files": paths}}
        text = yaml.safe_dump(whole, allow_unicode=True, sort_keys=False)
        (folder / f"{self.name}.yaml").write_text(text, encoding="utf-8")


def require() -> None:
    """Refuse to go on without lm-eval.

    Raises:
        ConfigError: it is not installed.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(
            "The recipe asks for lm-eval tasks", where="evaluate.lm_eval_tasks",
            expected="lm-eval 0.4.13 or later", got="not installed",
            fix="pip install 'megaline[eval]', or leave the tasks out with "
            "evaluate.lm_eval_tasks=[]",
        )  # fmt: skip


def read(files: Sequence[str]) -> list[Task]:
    """Read task files.

    Raises:
        ConfigError: a file is missing or no task; it holds code, takes in other files or fetches
            its data; or two bear one name.
    """
    tasks = [_read(Path(file)) for file in files]
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise ConfigError(
            "Two lm-eval tasks bear one name", where="evaluate.lm_eval_tasks",
            expected="each name once", got=", ".join(names), fix="change one file's `task:`",
        )  # fmt: skip
    return tasks


def run(
    tasks: Sequence[Task],
    model: Path,
    limit: int,
    work: Path,
    progress: Callable[[int, int], None],
) -> Results:
    """Evaluate a Hugging Face folder on a CPU, in float32.

    Args:
        tasks: at least one.
        model: the folder; code in it is not run.
        limit: items a task, the first ones.
        work: a folder to work in; emptied first, the log stays.
        progress: called with the requests done and their number.

    Returns:
        By task: `items`, and `metrics`, each `{"value": …, "stderr": …}` (None where unknown).

    Raises:
        RetryableError: lm-eval was killed.
        PipelineError: it failed; with its last lines.
    """
    shutil.rmtree(work, ignore_errors=True)
    (work / "tasks").mkdir(parents=True)
    for task in tasks:
        task.write(work / "tasks")
    log = work / "lm_eval.log"
    with open(log, "wb") as output:
        # In a folder of its own: `python -m` imports from the current one first.
        child = process.tied(
            _command(tasks, model, limit), cwd=work, env=_environment(work),
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            _follow(child, log, progress)
        finally:
            child.kill()
            child.wait()
    answers = sorted((work / "out").glob("**/results_*.json"))
    if child.returncode != 0 or not answers:
        raise _failure(child.returncode, log)
    answer = json.loads(answers[-1].read_text(encoding="utf-8"))
    return {task.name: _result(answer, task.name) for task in tasks}


def _read(file: Path) -> Task:
    if not file.is_file():
        raise ConfigError(
            "The lm-eval task does not exist", where=file, expected="a YAML file", got="none",
            fix="correct evaluate.lm_eval_tasks",
        )  # fmt: skip
    try:
        definition = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        # Code enters a task by a tag, `!function`, which safe YAML does not know.
        raise _refusal(file, "YAML without tags", str(error).partition("\n")[0]) from error
    name = definition.get("task") if isinstance(definition, dict) else None
    # It becomes a file's and a metric's name, and lm-eval takes wildcards in it.
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        raise _refusal(file, "`task:` with a name of letters, digits, _, - and .", name)
    for key in ("include", "unsafe_code"):
        if definition.get(key):
            raise _refusal(file, f"no `{key}`", definition[key])
    if definition.get("dataset_path") not in _FORMATS:
        expected = f"`dataset_path:` one of {', '.join(_FORMATS)}"
        raise _refusal(file, expected, definition.get("dataset_path"))
    options = dict(definition.get("dataset_kwargs") or {})
    data = options.pop("data_files", None)
    if not isinstance(data, dict) or not data:
        raise _refusal(file, "`dataset_kwargs: data_files:` with a file for each split", data)
    urls = {split: _urls(value, file) for split, value in data.items()}
    return Task(name, {**definition, "dataset_kwargs": options}, urls)


def _urls(value: Any, file: Path) -> list[str]:
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(url, str) for url in listed):
        raise _refusal(file, "data files by name", value)
    return [url if "://" in url else str(file.parent / url) for url in listed]


def _refusal(file: Path, expected: str, got: object) -> ConfigError:
    return ConfigError(
        "This is no lm-eval task that can be run here", where=file, expected=expected, got=got,
        fix="write it like deploy/lm_eval/hellaswag.yaml: complete, no code, data on this machine",
    )  # fmt: skip


def _command(tasks: Sequence[Task], model: Path, limit: int) -> list[str]:
    # As JSON, for a comma in a path would end it.
    arguments = {"pretrained": str(model.resolve()), "dtype": "float32"}
    return [
        *(sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--device", "cpu"),
        *("--model_args", json.dumps(arguments), "--limit", str(limit)),
        *("--tasks", ",".join(task.name for task in tasks), "--include_path", "tasks"),
        *("--output_path", "out"),
    ]


def _environment(work: Path) -> dict[str, str]:
    cache = str((work / "cache").resolve())
    return {
        # Threads that spin while they wait take time from others where work shares the cores.
        "OMP_WAIT_POLICY": "passive",
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_EVALUATE_OFFLINE": "1",
        "HF_HOME": cache,
        "HF_DATASETS_CACHE": cache,
        # Refuses what would run a model's code.
        "HF_ALLOW_CODE_EVAL": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
    }


def _follow(child: subprocess.Popen[Any], log: Path, progress: Callable[[int, int], None]) -> None:
    progress(0, 0)
    while True:
        try:
            child.wait(_TICK)
            return
        except subprocess.TimeoutExpired:
            if bars := _BAR.findall(_tail(log)):
                progress(*map(int, bars[-1]))


def _tail(log: Path) -> bytes:
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL))
        return file.read()


def _result(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """One task of lm-eval's JSON, whose keys are `metric,filter` and `metric_stderr,filter`."""
    found = answer["results"][name]
    metrics = {}
    for key, value in found.items():
        metric, comma, kind = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        stderr = found.get(f"{metric}_stderr,{kind}")
        known = isinstance(stderr, float) and math.isfinite(stderr)
        shown = metric if kind == "none" else f"{metric}_{kind}"
        metrics[shown] = {"value": value, "stderr": stderr if known else None}
    return {"items": answer["n-samples"][name]["effective"], "metrics": metrics}


def _failure(code: int, log: Path) -> PipelineError:
    text = log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n")
    words = "\n".join([line for line in text.splitlines() if line.strip()][-_LINES:])
    if code < 0:
        return RetryableError(
            "lm-eval was killed", where=log, expected="a run to the end",
            got=f"signal {-code}\n{words}", fix="run again; look for a lack of memory",
        )  # fmt: skip
    return PipelineError(
        "lm-eval failed", where=log, expected="results", got=f"status {code}\n{words}",
        fix="correct the task, or leave it out of evaluate.lm_eval_tasks",
    )  # fmt: skip
