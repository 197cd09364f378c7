"""Chat templates and rows that would take all time and memory, and datasets that are there."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import chat_cases as chat
import numpy as np
import pytest
from chat_cases import CHATML, turns

from tasks.core.errors import ConfigError, InputError
from tasks.tokens import indexed, invariants
from tasks.tokens.sft import dataset, template

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
SHORT = turns("u: hi", "a: there")


def make(folder: Path, source: str, rows: list[Any], **rules: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    model = chat.write_model(folder / "model", source)
    (folder / "rows").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rules = {"sequence_length": 64, **rules}
    return dataset.make([folder / "rows"], folder / "x", model, lambda *_, **__: None, 1, **rules)


def test_a_loop_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "SECONDS", 0.3)
    assert make(tmp_path / "ends", CHATML, [SHORT])["conversations"] == 1
    with pytest.raises(InputError, match=r"does not come to an end.*0\.3 s"):
        make(tmp_path / "loops", LOOP + CHATML, [SHORT])
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
    assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL


def test_a_template_that_writes_too_much_costs_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template, "LONGEST", 1000)
    doubling = "{{ messages[0].content * 10 }}" + CHATML
    told = make(tmp_path, doubling, [turns(f"u: {'x' * 100}", "a: y"), SHORT])
    assert told["reasons"] == {"the template writes more than 1,000 characters": 1}
    assert told["conversations"] == 1


@pytest.mark.parametrize("loss", ["answers", "all"])
def test_no_more_of_a_long_conversation_is_tokenized_than_a_pack_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    # The longest token has 13 characters.
    long = turns("u: hi", f"a: {'word ' * 300}", "u: more", "a: end")
    told = make(tmp_path / "drop", CHATML, [long, SHORT], loss=loss)
    (aside,) = (tmp_path / "drop" / "x_set_aside.jsonl").read_text().splitlines()
    assert told["reasons"] == {"longer than sequence_length": 1}
    assert json.loads(aside)["characters"] > 1500
    make(tmp_path / "cut", CHATML, [long, SHORT], loss=loss, too_long="truncate")
    # A token longer than all makes the room larger: nothing is cut before it is tokenized.
    monkeypatch.setattr(chat, "SPECIAL", (*chat.SPECIAL, "<" * 5000))
    make(tmp_path / "whole", CHATML, [long, SHORT], loss=loss, too_long="truncate")
    shift = len(chat.SPECIAL) - 1
    for name in ("x", "x_mask"):
        cut, whole = (invariants.read(tmp_path / made / name) for made in ("cut", "whole"))
        assert cut.lengths.tolist() == whole.lengths.tolist() == [64, 28]
        if name == "x_mask":
            assert np.array_equal(cut.values, whole.values)
        else:
            # One special token more moves the ids of all others.
            moved = np.where(cut.values < shift, cut.values, cut.values + 1)
            assert np.array_equal(moved, whole.values)


def test_a_finished_dataset_is_not_written_over(tmp_path: Path) -> None:
    make(tmp_path, CHATML, [SHORT])
    before = {path.name: path.read_bytes() for path in tmp_path.glob("x*")}
    with pytest.raises(ConfigError, match=r"there already.*x_tokens\.json"):
        make(tmp_path, CHATML, [SHORT, SHORT])
    assert {path.name: path.read_bytes() for path in tmp_path.glob("x*")} == before
    # Half of one is: its record comes last.
    (tmp_path / "x_tokens.json").unlink()
    assert make(tmp_path, CHATML, [SHORT, SHORT])["conversations"] == 2


def test_a_text_dataset_is_not_written_over(tmp_path: Path) -> None:
    with indexed.Writer(tmp_path / "x", np.dtype("<u2")) as writer:
        writer.add(np.arange(3), np.array([3], np.int32))
    with pytest.raises(ConfigError, match=r"there already.*x\.bin"):
        make(tmp_path, CHATML, [SHORT])
    with pytest.raises(ConfigError, match="has no name"):
        dataset.make([], Path(), tmp_path, lambda *_, **__: None, 1, sequence_length=9)
