"""A command that is killed, or whose files change: what goes on, and what is begun anew."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import InputError, RetryableError
from tasks.tokens import lines, shards
from tasks.tokens.preprocess import Options, preprocess

DATA = Path(__file__).parents[1] / "data" / "tokens"
DOCUMENTS, GPT2 = DATA / "documents.jsonl", DATA / "gpt2"


def run(files: list[Path], out: Path, tokenizer: Path = GPT2, **options: Any) -> dict[str, Any]:
    return preprocess(files, out, Options(tokenizer, **options), 1, lambda *_, **__: None)


def made(folder: Path) -> dict[str, bytes]:
    """The datasets in a folder."""
    suffixes = (".bin", ".idx")
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix in suffixes}


def test_one_command_at_a_time(tmp_path: Path) -> None:
    (tmp_path / ".x.tokenize").mkdir()
    with open(tmp_path / ".x.tokenize" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RetryableError, match="being written"):
            run([DOCUMENTS], tmp_path / "x")
    run([DOCUMENTS], tmp_path / "x")


_KILLED = """
import sys
from pathlib import Path
from tasks.tokens import lines, shards
from tasks.tokens.preprocess import Options, preprocess
if __name__ == "__main__":
    lines._SMALLEST = lines._LARGEST = 2000
    shards._WORTH_A_PROCESS, shards._TEXT_WORTH_A_PROCESS = {}, 1
    options = Options(Path(sys.argv[3]), append_eod=True)
    preprocess([Path(sys.argv[1])], Path(sys.argv[2]), options, 2, lambda *_, **__: None)
"""


def test_killed_in_the_middle_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out" / "x"
    source.write_bytes(DOCUMENTS.read_bytes() * 2000)
    out.parent.mkdir()
    (tmp_path / "killed.py").write_text(_KILLED)
    command = [sys.executable, tmp_path / "killed.py", source, out, GPT2]
    environment = {**os.environ, "PYTHONPATH": str(DATA.parents[2])}
    child = subprocess.Popen(command, env=environment)
    folder = out.parent / ".x.tokenize" / "shards"
    limit = time.monotonic() + 120
    while len(list(folder.glob("0*"))) < 5 and child.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
    child.kill()
    assert child.wait() == -9
    before = {path.name for path in folder.glob("0*")}
    monkeypatch.setattr(lines, "_SMALLEST", 2000)
    monkeypatch.setattr(lines, "_LARGEST", 2000)
    encoded: list[str] = []
    encode_block = shards.encode_block

    def noted(job: Any, folder: Path, block: lines.Block) -> None:
        encoded.append(f"{block.number:06}")
        encode_block(job, folder, block)

    monkeypatch.setattr(shards, "encode_block", noted)
    run([source], out, append_eod=True)
    assert len(before) >= 5
    assert not before & set(encoded)
    assert len(encoded) + len(before) == len(list(lines.blocks([source])))
    monkeypatch.undo()
    (tmp_path / "wanted").mkdir()
    run([source], tmp_path / "wanted" / "x", append_eod=True)
    assert made(out.parent) == made(tmp_path / "wanted")


class Killed(BaseException):
    """No `except` for mistakes sees it."""


def killed(*_: Any) -> None:
    raise Killed


def not_again(*_: Any) -> None:
    raise AssertionError


def encode_and_die(source: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All shards are sealed, and nothing is put together."""
    with monkeypatch.context() as patch:
        patch.setattr(shards, "merge", killed)
        with pytest.raises(Killed):
            run([source], out)


@pytest.mark.parametrize("moves", range(7))
def test_killed_while_it_moves_the_files_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    rename, left = os.rename, [moves]

    def some(source: Path, target: Path) -> None:
        if Path(target).parent == tmp_path:
            if not left[0]:
                raise Killed
            left[0] -= 1
        rename(source, target)

    (tmp_path / "in").write_bytes(DOCUMENTS.read_bytes() + b"no\n")
    (tmp_path / "wanted").mkdir()
    keys = ("text", "title")
    wanted = run([tmp_path / "in"], tmp_path / "wanted" / "x", json_keys=keys)
    monkeypatch.setattr(os, "rename", some)
    if moves < 6:
        with pytest.raises(Killed):
            run([tmp_path / "in"], tmp_path / "x", json_keys=keys)
        monkeypatch.undo()
        monkeypatch.setattr(shards, "encode_block", not_again)
        assert len(list(tmp_path.glob("x_*"))) == moves
    facts = run([tmp_path / "in"], tmp_path / "x", json_keys=keys)
    assert facts["datasets"]["text"]["tokens"] == wanted["datasets"]["text"]["tokens"]
    assert made(tmp_path) == made(tmp_path / "wanted")
    assert len(list(tmp_path.glob("x_*"))) == 6
    assert not list(tmp_path.glob(".*"))


def test_a_mistake_in_the_call_does_not_cost_what_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode_and_die(DOCUMENTS, tmp_path / "x", monkeypatch)
    with pytest.raises(InputError, match="no such tokenizer"):
        run([DOCUMENTS], tmp_path / "x", tmp_path / "mistyped")
    monkeypatch.setattr(shards, "encode_block", not_again)
    assert run([DOCUMENTS], tmp_path / "x")["datasets"]["text"]["documents"] == 9


@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_of_the_same_size_and_time_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    source = tmp_path / "in"
    source.write_bytes(DOCUMENTS.read_bytes())

    encode_and_die(source, tmp_path / "x", monkeypatch)
    if replaced:
        times = (source.stat().st_atime_ns, source.stat().st_mtime_ns)
        source.write_bytes(DOCUMENTS.read_bytes().swapcase().lower())
        os.utime(source, ns=times)
    encoded: list[int] = []
    encode_block = shards.encode_block

    def noted(job: Any, folder: Path, block: lines.Block) -> None:
        encoded.append(block.number)
        encode_block(job, folder, block)

    monkeypatch.setattr(shards, "encode_block", noted)
    run([source], tmp_path / "x")
    assert bool(encoded) == replaced


def test_a_file_that_changes_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_bytes(DOCUMENTS.read_bytes())
    encode_block = shards.encode_block

    def grown(job: Any, folder: Path, block: lines.Block) -> None:
        encode_block(job, folder, block)
        with open(tmp_path / "in", "ab") as file:
            file.write(b'{"text": "late"}\n')

    monkeypatch.setattr(shards, "encode_block", grown)
    with pytest.raises(InputError, match="changed while it was tokenized"):
        run([tmp_path / "in"], tmp_path / "x")


def test_what_another_job_left_is_not_used(tmp_path: Path) -> None:
    job_folder = tmp_path / ".x.tokenize" / "shards"
    (job_folder / "000000").mkdir(parents=True)
    (job_folder / "identity.json").write_text("{}")
    facts = run([DOCUMENTS], tmp_path / "x")
    assert facts["datasets"]["text"]["documents"] == 9
