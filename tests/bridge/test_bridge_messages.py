"""What the commands say of a mistake on the command line, or in `config.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import toys

from megatron_bridge import inspection
from megatron_bridge.__main__ import main
from megatron_bridge.conversion import Conversion
from megatron_bridge.errors import ConfigError, InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    toys.hf_model("llama", tmp_path / "hf")
    return tmp_path / "hf"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--vocab-size", "abc"], "invalid int value: 'abc'"),
        (["--memory", "abc"], "'abc' is no size; write 600MB or 2GB"),
        (["--memory", "-1GB"], "a value that begins with - is written --option=VALUE"),
        (["--memory", "100MB"], "Expected: at least 502MB. Got: 100MB."),
    ],
)
def test_mistakes_on_the_command_line(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path), str(tmp_path.with_name("out")), *words]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "  " not in said


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"holds no model.*Got: a file"):
        inspection.inspect(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"hidden_size": "64"}, ", hidden_size. Expected: a whole number of at least 1. Got: '64'"),
        ({"hidden_size": None}, r". Expected: hidden_size, which becomes"),
        ({"hidden_act": "gelu"}, ", hidden_act. Expected: 'silu'. Got: 'gelu'"),
        ({"model_type": "lama"}, ", model_type. "),
    ],
)
def test_errors_in_the_config_name_its_folder(
    changed: dict[str, Any], told: str, folder: Path
) -> None:
    change(folder, changed)
    with pytest.raises(ConfigError, match=f"Where: {folder}: config.json{told}"):
        Conversion.of_folder(folder)


@pytest.mark.parametrize("difference", [-1, 1])
def test_another_number_of_layers(difference: int, folder: Path) -> None:
    assert all("layers" not in text for text in inspection.inspect(folder)["missing"])
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    change(folder, {"num_hidden_layers": layers + difference})
    (told,) = (text for text in inspection.inspect(folder)["missing"] if "do not fit" in text)
    assert f"config.json says {layers + difference} layers, the weights have {layers};" in told


def change(folder: Path, changed: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
