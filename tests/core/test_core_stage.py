"""Building, reusing, sealing: without Prefect, on a disk."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from core_stages import RawConfig, UpperConfig, raw, upper

from tasks.core.artifacts import RawCorpus
from tasks.core.errors import ConfigError, ProofError, RetryableError
from tasks.core.provenance import without_secrets
from tasks.core.record import FileEntry, Record
from tasks.core.stage import Context, Stage, stage
from tasks.core.store import Store, link_or_copy


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def make(function: Any, **options: Any) -> Stage:
    """A stage without inputs of a plain function `(config, ctx)`."""
    function.__annotations__ = {"config": RawConfig, "ctx": Context}
    return stage("raw", version=2, output=RawCorpus, label=lambda config, inputs: "x", **options)(
        function
    )


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def files(root: Path) -> set[str]:
    return {name for name in tree(root) if (root / name).is_file()}


def test_built_then_reused(store: Store) -> None:
    first = raw.build(store, RawConfig())
    again = raw.build(store, RawConfig(workers=5))
    assert (first.state, again.state) == ("Built", "Reused")
    assert first.artifact == again.artifact
    assert first.artifact.path == store.root / "raw" / "abc" / first.artifact.fingerprint


def test_record_tells_everything(store: Store) -> None:
    corpus = raw.build(store, RawConfig()).artifact
    cleaned = upper.build(store, UpperConfig(), {"corpus": corpus}, flow_run_id="f").artifact
    text = json.loads((cleaned.path / "artifact.json").read_text())
    assert text["schema"] == 1
    assert text["inputs"] == [
        {"name": "corpus", "stage": "raw", "label": "abc", "fingerprint": corpus.fingerprint}
    ]
    assert text["files"] == [
        {
            "path": "part-00000.jsonl", "bytes": 3,
            "sha256": "b5d4045c3f466fa91fe2cc6abe79232a1a57cdf104f7a26e716e0a1e2789df78",
        }
    ]  # fmt: skip
    assert text["metrics"] == {"characters": 3}
    assert text["provenance"]["flow_run_id"] == "f"
    assert text["provenance"]["packages"]["pydantic"]
    assert Record.model_validate(text) == cleaned.record


def test_sealed_files_are_read_only(store: Store) -> None:
    path = raw.build(store, RawConfig()).artifact.files[0]
    assert not stat.S_IMODE(path.stat().st_mode) & 0o222


@pytest.mark.parametrize("damage", ["shorter", "missing", "record"])
def test_damaged_output_is_built_again(store: Store, damage: str) -> None:
    artifact = raw.build(store, RawConfig()).artifact
    path = artifact.files[0]
    path.chmod(0o644)
    if damage == "shorter":
        path.write_text("a")
    elif damage == "missing":
        path.unlink()
    else:
        (artifact.path / "artifact.json").write_text('{"schema": 1')
    again = raw.build(store, RawConfig())
    assert again.state == "Built"
    assert again.artifact.files[0].read_text() == "abc"


def test_data_without_record_and_strangers_are_replaced(store: Store) -> None:
    address = raw.address(RawConfig(), {}, store.digests)
    stray = store.path(address) / "data" / "stray.txt"
    stray.parent.mkdir(parents=True)
    stray.write_text("half")
    assert raw.find(store, address) is None
    artifact = raw.build(store, RawConfig()).artifact
    assert tree(artifact.path) == ["artifact.json", "data", "data/raw.txt"]


def test_out_is_empty_and_scratch_survives_failed_attempts(store: Store) -> None:
    def work(config: Any, ctx: Context) -> dict[str, Any]:
        assert list(ctx.out.iterdir()) == []
        (ctx.out / "file").write_text("x")
        with (ctx.scratch / "tries").open("a") as file:
            file.write("x")
        if (ctx.scratch / "tries").stat().st_size < 3:
            raise OSError("lost a node")
        return {"tries": 3}

    flaky = make(work)
    for _ in range(2):
        with pytest.raises(OSError, match="lost a node"):
            flaky.build(store, RawConfig())
    assert flaky.build(store, RawConfig()).artifact.metrics == {"tries": 3}
    assert not (store.path(flaky.address(RawConfig(), {}, store.digests)) / "work").exists()


def test_force_keeps_the_old_output_until_the_new_is_whole(store: Store) -> None:
    made = iter(["one", "two"])

    def work(config: Any, ctx: Context) -> dict[str, Any]:
        (ctx.out / "file").write_text(next(made))
        return {}

    twice = make(work)
    first = twice.build(store, RawConfig()).artifact
    second = twice.build(store, RawConfig(), force=True)
    assert (second.state, second.artifact.files[0].read_text()) == ("Built", "two")
    assert first.path == second.artifact.path
    with pytest.raises(StopIteration):
        twice.build(store, RawConfig(), force=True)
    assert twice.build(store, RawConfig()).state == "Reused"


def test_what_does_not_hold_is_not_sealed(store: Store) -> None:
    def check(out: Path, metrics: dict[str, Any]) -> None:
        raise ProofError("no documents", where=out)

    def empty(config: Any, ctx: Context) -> dict[str, Any]:
        return {}

    def not_a_number(config: Any, ctx: Context) -> dict[str, Any]:
        (ctx.out / "file").write_text("x")
        return {"loss": float("nan")}

    def link(config: Any, ctx: Context) -> dict[str, Any]:
        (ctx.out / "file").symlink_to("/etc/passwd")
        return {}

    def one(config: Any, ctx: Context) -> dict[str, Any]:
        (ctx.out / "file").write_text("x")
        return {}

    for broken in (make(one, check=check), make(empty), make(not_a_number), make(link)):
        with pytest.raises(ProofError):
            broken.build(store, RawConfig())
        assert broken.find(store, broken.address(RawConfig(), {}, store.digests)) is None


def test_still_valid_is_asked_before_reuse(store: Store) -> None:
    answers: list[bool] = []

    def one(config: Any, ctx: Context) -> dict[str, Any]:
        (ctx.out / "file").write_text("x")
        return {}

    deployed = make(one, still_valid=lambda artifact: answers.pop(0))
    deployed.build(store, RawConfig())
    answers += [True]
    assert deployed.build(store, RawConfig()).state == "Reused"
    answers += [False, False]
    assert deployed.build(store, RawConfig()).state == "Built"


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "full"), RuntimeError("x: No space left on device (os error 28)")],
)
def test_full_disk_gives_its_room_back(store: Store, error: Exception) -> None:
    def work(config: Any, ctx: Context) -> dict[str, Any]:
        (ctx.out / "big").write_bytes(b"x" * 1000)
        raise error

    raw.build(store, RawConfig())
    before = files(store.root)
    with pytest.raises(RetryableError, match="disk is full"):
        make(work).build(store, RawConfig())
    assert files(store.root) - {".lock"} == before - {".lock"}


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="needs a second filesystem")
def test_scratch_on_another_filesystem(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        assert os.stat(scratch).st_dev != os.stat(store.root.parent).st_dev
        monkeypatch.setenv("MEGALINE_SCRATCH", scratch)
        artifact = raw.build(store, RawConfig()).artifact
        assert artifact.files[0].read_text() == "abc"
        assert tree(artifact.path) == ["artifact.json", "data", "data/raw.txt"]
        assert not [path for path in Path(scratch).rglob("*") if path.is_file()]


def test_hard_link_where_it_can(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").stat().st_ino == (tmp_path / "b").stat().st_ino


def test_missing_input_is_named(store: Store) -> None:
    with pytest.raises(ConfigError, match="corpus"):
        upper.build(store, UpperConfig())


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", ""])
def test_record_stays_inside_data(path: str) -> None:
    with pytest.raises(ValueError, match="inside data"):
        FileEntry(path=path, bytes=1, sha256="0")


def test_labels_are_safe_path_parts(store: Store) -> None:
    for text in ("../../etc", "a/b c", "..", "x" * 300):
        artifact = raw.build(store, RawConfig(text=text)).artifact
        assert artifact.path.parent.parent == store.root / "raw"
        assert len(artifact.path.parent.name) <= 100


def test_no_secret_in_argv() -> None:
    shown = without_secrets(
        ["megaline", "--api-key", "s3", "export.access_key_secret=s3", "train.steps=7",
         "tokens.seed=1", "https://u:s3@host/x", "--token=s3", "oss://b/x?OSSAccessKeyId=s3"]
    )  # fmt: skip
    assert "s3" not in " ".join(shown)
    assert "train.steps=7" in shown
    assert "tokens.seed=1" in shown


def test_stages_need_no_prefect(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import sys; from core_stages import *; "
        "raw.build(Store(sys.argv[1]), RawConfig()); "
        "print({'prefect', 'torch', 'transformers', 'numpy'} & set(sys.modules))"
    )
    here = Path(__file__).parent
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": f"{here}:{here.parents[1]}"}, cwd=here,
    )  # fmt: skip
    assert run.stdout.strip() == "set()", run.stderr
