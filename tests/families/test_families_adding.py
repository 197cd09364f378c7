"""`families/ADDING.md` is followed to the letter, in a copy of the repository."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_bridge import families
from megatron_bridge.errors import ConfigError

ROOT = Path(__file__).parents[2]
PAGE = "megatron_bridge/families/ADDING.md"


def blocks(language: str) -> list[str]:
    text = (ROOT / PAGE).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and the families' bench, with the page's blocks in their places."""
    skip = shutil.ignore_patterns("__pycache__", "cases_*.py")
    shutil.copytree(ROOT / "megatron_bridge", tmp_path / "megatron_bridge", ignore=skip)
    shutil.copytree(ROOT / "tests/families", tmp_path / "tests/families", ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for block in blocks("python"):
        first, _, text = block.partition("\n")
        path = tmp_path / first.removeprefix("# ")
        if path.exists():
            before = path.read_text("utf-8")
            path.write_text(before.replace("\n_ALL = (", f"\n{text}\n_ALL = (ACORN,"), "utf-8")
        else:
            path.write_text(text, "utf-8")
    return tmp_path


def test_a_family_added_by_the_page_is_proved(copy: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    ((command,),) = (block.splitlines() for block in blocks("sh"))
    words = [sys.executable, *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b9 passed, 1 skipped", done.stdout), done.stdout


def test_an_unknown_family_is_told_the_nearest_and_the_page() -> None:
    with pytest.raises(ConfigError, match=r"nearest are .*llama.*ADDING\.md") as told:
        families.get("llama4")
    page = re.search(r"follow (\S+\.md)", str(told.value))
    assert page
    assert Path(page[1]).is_file()
