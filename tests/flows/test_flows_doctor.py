"""`megaline doctor` on machines that lack something, and completion in a real shell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from flows import doctor
from flows.cli import StageName, _guarded, app

SECRET = "s3cr3t-do-not-show"


@pytest.fixture
def thin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at two light packages only: the heavy ones are tried once, by hand, in a run."""
    for name in ("safetensors", "gguf"):
        monkeypatch.setitem(doctor.PACKAGES, name, "json")
    for name in set(doctor.PACKAGES) - {"safetensors", "gguf", "transformer-engine"}:
        monkeypatch.setitem(doctor.PACKAGES, name, f"json.{name.replace('-', '_')}_not_there")


def test_it_answers_in_json_and_in_lines(thin: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert _guarded(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["packages"]["safetensors"]["version"]
    assert report["packages"]["megatron-core"]["supported"]
    assert report["machine"]["cores"] >= 1
    for found in report["capabilities"].values():
        assert found["can"] == (not found["lacks"]) == (not found["get"])
    assert _guarded(["doctor"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*report["capabilities"], *report["packages"]))


def test_a_broken_library_is_one_line_and_named(thin: None) -> None:
    report = doctor.examine()
    torch = report["packages"]["torch"]
    assert "ModuleNotFoundError" in torch["error"]
    assert "\n" not in torch["error"]
    assert report["capabilities"]["train on CPU"]["can"] is False
    assert "torch that can be imported" in report["capabilities"]["train on CPU"]["lacks"]


def test_a_library_that_kills_its_process_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crashes.py").write_text("import os; os.kill(os.getpid(), 11)")
    (tmp_path / "talks.py").write_text("print('{not json'); raise RuntimeError('two\\nlines')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = doctor._imported(["json", "crashes", "talks", "csv"])
    assert found["json"]["error"] is None
    assert found["csv"]["error"] is None
    assert "status -11" in found["crashes"]["error"]
    assert found["talks"]["error"] == "RuntimeError: two lines"


def test_no_secret_is_shown(
    thin: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in doctor.CREDENTIALS:
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("PREFECT_API_URL", f"http://user:{SECRET}@127.0.0.1:9/api?key={SECRET}")
    for words in (["doctor"], ["doctor", "--json"]):
        assert _guarded(words) == 0
        out, err = capsys.readouterr()
        assert SECRET not in out + err
        assert out.count("present") == len(doctor.CREDENTIALS)
        assert "does not answer" in out
    for name in doctor.CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert set(doctor.examine()["credentials"].values()) == {"absent"}


def test_fp8_needs_a_newer_gpu_than_bf16_does() -> None:
    packages: dict[str, Any] = {
        name: {"version": "1", "error": None, "cuda_build": "13"} for name in doctor.PACKAGES
    }
    able = {}
    for capability in ("8.0", "9.0"):
        found = doctor._capabilities(packages, [{"capability": capability}])
        able[capability] = {name for name, item in found.items() if item["can"]}
    assert able["9.0"] - able["8.0"] == {"train on GPU, FP8"}
    assert not doctor._capabilities(packages, [])["train on GPU, bf16"]["can"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("megaline pl", ["plan"]),
        ("megaline do", ["doctor"]),
        ("megaline run x.yaml --until tr", ["train"]),
        ("megaline why x.yaml ", list(get_args(StageName))),
    ],
)
def test_bash_completes(tmp_path: Path, typed: str, offered: list[str]) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(_completion("bash"))
    # What Tab does: split the line into words, call the function that `complete -F` named.
    ask = (
        f'source {script}; words=$1; COMP_LINE=$words; read -ra COMP_WORDS <<< "$words"; '
        '[[ $words == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); '
        "how=$(complete -p megaline); how=${how#*-F }; ${how%% *}; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    answer = subprocess.run(
        ["bash", "--norc", "-c", ask, "bash", typed], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == offered
    assert answer.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shells_script_names_every_command(shell: str) -> None:
    script = _completion(shell)
    assert all(name in script for name in app if not name.startswith("-"))
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def _completion(shell: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", "completion", shell],
        capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    ).stdout  # fmt: skip
