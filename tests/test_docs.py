"""The READMEs: both languages give the same commands, every verb is told, and all of it runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from flows import cli
from megatron_bridge import __main__ as bridge
from megatron_bridge.arguments import parser

REPOSITORY = Path(__file__).parents[1]
READMES = ["README.md", "README.zh-CN.md"]


def commands(readme: str) -> list[str]:
    """Every line of every `sh` block, in the order of the page."""
    text = (REPOSITORY / readme).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def test_both_languages_give_the_same_commands() -> None:
    english, chinese = map(commands, READMES)
    assert len(english) > 15
    assert english == chinese


@pytest.mark.parametrize("readme", READMES)
def test_every_command_of_ours_is_told(readme) -> None:
    text = (REPOSITORY / readme).read_text(encoding="utf-8")
    verbs = [name for name in cli.app if not name.startswith("-")]
    assert verbs
    assert [verb for verb in verbs if f"megaline {verb}" not in text] == []
    assert [verb for verb in bridge._RUNS if f"`{verb}`" not in text] == []


def test_help_of_the_bridge_teaches() -> None:
    """Every argument is explained, and the examples are ones that can be read."""
    whole = parser(bridge._RUNS)
    commands = next(action.choices for action in whole._actions if action.choices)
    assert list(commands) == list(bridge._RUNS)
    for name, command in commands.items():
        assert [action.dest for action in command._actions if not action.help] == []
        lines = command.format_help().replace("\\\n", " ").splitlines()
        examples = [
            line for line in lines if line.startswith(f"  python -m megatron_bridge {name}")
        ]
        assert examples
        for example in examples:
            words = shlex.split(example.partition(">")[0].partition("&&")[0])[3:]
            assert whole.parse_args(words).run is bridge._RUNS[name]


@pytest.mark.parametrize("readme", READMES)
def test_every_path_and_link_of_the_page_is_there(readme) -> None:
    text = (REPOSITORY / readme).read_text(encoding="utf-8")
    named = {word for line in commands(readme) for word in shlex.split(line) if "deploy/" in word}
    named |= set(re.findall(r"\]\((?!https?:)([^)#]+)\)", text))
    assert named
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("readme", READMES)
def test_a_stranger_can_follow_the_page(readme, tmp_path) -> None:
    """A clean clone and a fresh environment, from the top of the page to its bottom."""
    clone = tmp_path / "megaline"
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, clone], check=True)
    fresh = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MEGALINE_", "PREFECT_", "VIRTUAL_ENV", "PYTHON"))
    }
    fresh["PATH"] = os.pathsep.join(
        part for part in fresh["PATH"].split(os.pathsep) if ".venv" not in part
    )
    fresh |= {"PREFECT_HOME": str(tmp_path / "prefect"), "DO_NOT_TRACK": "1"}
    script = "set -e\n" + "".join(f"echo {shlex.quote('$ ' + c)}\n{c}\n" for c in commands(readme))
    with (tmp_path / "walk.log").open("w+") as log:
        done = subprocess.run(["bash", "-c", script], cwd=clone, env=fresh, stdout=log, stderr=log)
        log.seek(0)
        told = log.read()
    assert done.returncode == 0, told[-3000:]
    assert "Traceback" not in told
    assert (clone / "build/report.html").stat().st_size > 10_000
