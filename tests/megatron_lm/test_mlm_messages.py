"""What the commands say of a folder that is damaged, or is of another kind than they take."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from megatron_bridge import inspection
from megatron_bridge.__main__ import main
from megatron_bridge.bar import Bar
from megatron_bridge.convert import export_hf, import_hf
from megatron_bridge.errors import InputError, MappingError
from megatron_bridge.megatron_lm.sides import Given
from megatron_bridge.proof import TENSORS

DATA = Path(__file__).parents[1] / "data" / "megatron_lm"
SHORT = 3000


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("exported") / "hf"
    export_hf(DATA / "dense-torch", place, proof=TENSORS)
    return place


@pytest.fixture(scope="module")
def ours(exported: Path) -> Path:
    place = exported.parent / "ours"
    import_hf(exported, place, proof=TENSORS)
    return place


def test_files_that_the_index_names_are_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(DATA / "dense-torch_dist", tmp_path / "run")
    file = tmp_path / "run" / "iter_0000003" / "__1_0.distcp"
    whole = file.read_bytes()
    assert not inspection.inspect(tmp_path / "run")["damaged"]

    file.write_bytes(whole[:SHORT])
    assert main(["inspect", str(tmp_path / "run")]) == 2
    told = f"missing        a part of __1_0.distcp: {SHORT:,} of {len(whole):,} bytes are there"
    assert told in capsys.readouterr().out
    with pytest.raises(InputError, match=f"shorter.*__1_0.distcp.*Got: {SHORT:,} bytes"):
        export_hf(tmp_path / "run", tmp_path / "out", proof=TENSORS)

    file.unlink()
    assert main(["inspect", str(tmp_path / "run")]) == 2
    assert "the file __1_0.distcp, which the index names" in capsys.readouterr().out


def test_another_number_of_tokens_than_the_runs_own_is_told(tmp_path: Path) -> None:
    given = Given(vocab_size=102)
    found = export_hf(DATA / "dense-torch", tmp_path / "out", proof=TENSORS, given=given)
    source = "--vocab-size (the run's arguments say 101)"
    assert found["origin"]["vocabulary"] == {"true": 102, "padded": 112, "from": source}


@pytest.mark.parametrize("command", ["export", "reshard", "inspect"])
def test_the_folder_of_one_rank(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = DATA / "dense-torch" / "iter_0000003"
    out = [] if command == "inspect" else [str(tmp_path / "out")]
    assert main([command, str(run / "mp_rank_00_000"), *out]) == 2
    assert f"of one rank; give the one that it lies in, {run}." in capsys.readouterr().err


def test_each_command_names_the_one_that_takes_the_folder(
    exported: Path, ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for command, given, told in [
        ("export", exported, f"did you mean import? python -m megatron_bridge import {exported}"),
        ("import", ours, f"did you mean export? python -m megatron_bridge export {ours} OUT"),
        ("import", DATA / "dense-torch", "Got: what Megatron-LM wrote. What to do: did you mean"),
        ("reshard", ours, "in torch_dist already"),
    ]:
        assert main([command, str(given), str(out)]) == 2
        assert told in capsys.readouterr().err
    assert not out.exists()


def test_like_of_another_family(ours: Path, tmp_path: Path) -> None:
    export_hf(DATA / "experts-torch", tmp_path / "like", proof=TENSORS)
    with pytest.raises(MappingError, match="The checkpoint is llama, --like is mixtral"):
        export_hf(ours, tmp_path / "out", tmp_path / "like", proof=TENSORS)


def test_what_an_interrupt_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    command = ["reshard", str(DATA / "dense-torch"), str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(Bar, "__enter__", interrupt)
        assert main(command) == 130
    assert capsys.readouterr().err == "interrupted\n"
    with monkeypatch.context() as patch:
        patch.setattr(Bar, "__call__", interrupt)
        assert main(command) == 130
    work = tmp_path / ".out.unfinished"
    assert f"what is finished is kept in {work}: the same command" in capsys.readouterr().err
    assert list((work / "journal").glob("write-*.json"))
    assert main(command) == 0
    assert not work.exists()
