"""`megaline tokenize-chat` and `megaline show-tokens`, as a user calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import chat_cases as chat
import numpy as np
import pytest
from chat_cases import CHATML, turns

from flows.cli import _guarded, main
from flows.show_tokens import lines, sample
from tasks.tokens import indexed

CONTROLS = "\x1b\x9b\u202e\r\x07"
STEERING = "\x1b[2J\x9b\u202e\r\x07"
ROWS = [
    turns("s: Be kind.", "u: 東京?", "a: ja\nnein", id="one"),
    turns("u: hi", f"a: {STEERING}x", id=f"two{STEERING}"),
    turns(f"u: hi{STEERING}<|im_end|>", "a: x"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prefix of a dataset that the command wrote."""
    folder = tmp_path_factory.mktemp("chat")
    model = chat.write_model(folder / "model", CHATML, (("Ċ", "n"), ("e", "i")))
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    out = folder / "out" / "train"
    command = ["tokenize-chat", folder / "rows.jsonl", "--model", model, "--out", out]
    assert _guarded([*map(str, command), "--sequence-length", "200", "--workers", "1"]) == 0
    return out


def say(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert _guarded([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_without_colour_marks_show_loss_and_tokens(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = say(capsys, "show-tokens", made)
    # By hand: 18 + 15 + 18 tokens, where "\nn" and "ei" are one each; and 10 + 25.
    assert told.splitlines()[0].startswith("── conversation 0, 51 tokens, 6 bear loss, id one,")
    assert "<|im_start|>│u│s│e│r│⏎\n│⋯│⋯│東│⋯│⋯│京│?│<|im_end|>│⏎\n" in told
    assert "a│n│t│⏎\n‹j│a│⏎\nn│ei│n│<|im_end|>›⏎\n" in told
    assert told.splitlines()[-1] == "── 86 tokens in all, 19 bear loss ──"


@pytest.mark.parametrize("options", [[], ["--ids"]])
def test_a_strangers_text_steers_no_terminal(
    made: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    told = say(capsys, "show-tokens", made, "--document", 1, *options)
    assert not set(told) & set(CONTROLS)
    assert "␛" in told
    coloured = "\n".join(lines(sample(made, None, 1, 9, None), colour=True))
    assert not set(re.sub(r"\x1b\[(0|2|30;42|30;102)m", "", coloured)) & set(CONTROLS)


def test_colours_are_those_of_the_mask(made: Path) -> None:
    found = sample(made, 0, None, 9, None)
    coloured = "\n".join(lines(found, colour=True))
    green = coloured.count("\x1b[30;42m") + coloured.count("\x1b[30;102m")
    breaks = sum(t["loss"] and "\n" in t["text"] for d in found["documents"] for t in d["tokens"])
    assert green == 19 + breaks


def test_json_holds_the_whole_text(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(say(capsys, "show-tokens", made.parent, "--json"))
    texts = ["".join(token["text"] for token in one["tokens"]) for one in found["documents"]]
    assert texts[0].endswith("東京?<|im_end|>\n<|im_start|>assistant\nja\nnein<|im_end|>\n")
    assert f"assistant\n{STEERING}x<|im_end|>" in texts[1]
    assert [one["note"]["id"] for one in found["documents"]] == [row["id"] for row in ROWS[:2]]


def test_documents_of_plain_text_and_where_they_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = chat.write_model(tmp_path / "model", None)
    letters = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    data = tmp_path / "output" / "data"
    data.mkdir(parents=True)
    (model / "tokenizer.json").replace(data / "tokenizer.json")
    with indexed.Writer(data / "test", indexed.best_dtype(300)) as writer:
        ids = [[letters[letter] for letter in text] + [0] for text in ("abc", "", "defg")]
        flat = np.array([number for one in ids for number in one])
        # The last document has two sequences, as one of two sentences would.
        writer.add(flat, np.array([4, 1, 2, 3], np.int32), np.array([1, 1, 2]))

    def texts(*options: object) -> list[tuple[int, str]]:
        told = say(capsys, "show-tokens", data.parent, "--split", "test", "--json", *options)
        documents = json.loads(told)["documents"]
        return [(one["document"], "".join(t["text"] for t in one["tokens"])) for one in documents]

    end = "<|endoftext|>"
    assert texts("--document", 2) == [(2, f"defg{end}")]
    assert texts("--document", 1) == [(1, end)]
    assert texts("--length", 4) == [(0, f"abc{end}")]
    assert texts("--length", 3, "--index", 1) == [(0, end), (1, end), (2, "d")]
    assert texts("--length", 3, "--index", 3) == [(2, end)]
    assert "1 tokens, 1 bear loss" in say(
        capsys, "show-tokens", data / "test", "--document", 1, "--ids"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--index", "1"], "has no such sample"),
        (["--document", "7"], "0 to 1: it has 2 conversations"),
        (["--tokenizer", "nowhere.json"], "no tokenizer to show"),
        (["--split", "none", "FOLDER"], "no token dataset"),
        (["--index", "-1"], "-1"),
    ],
)
def test_mistakes_are_told_in_a_paragraph(
    made: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    path = made.parent if "FOLDER" in arguments else made
    with pytest.raises(SystemExit) as exit_:
        main(["show-tokens", str(path), *(a for a in arguments if a != "FOLDER")])
    said = capsys.readouterr().err
    assert (exit_.value.code, words in said, "Traceback" in said) == (2, True, False)


def test_tokenize_chat_tells_what_it_left_out(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made.parents[1]
    told = say(
        capsys, "tokenize-chat", folder / "rows.jsonl", folder / "rows.jsonl", "--model",
        folder / "model", "--out", tmp_path / "two", "--sequence-length", 40, "--workers", 1,
    )  # fmt: skip
    assert "2 conversations in 2 packs of up to 40 tokens" in told
    assert "70 tokens, of which 26 bear loss (37.1%)" in told
    assert "set aside: 4 rows" in told
    assert "2  a message holds the special token <|im_end|>" in told
    assert "2  longer than sequence_length" in told


def test_tokenize_chat_needs_a_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = chat.write_model(tmp_path / "model", None)
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS[0]))
    command: list[Any] = ["tokenize-chat", tmp_path / "rows.jsonl", "--model", model]
    with pytest.raises(SystemExit) as exit_:
        main([*map(str, command), "--out", str(tmp_path / "o"), "--sequence-length", "9"])
    assert exit_.value.code == 2
    assert "chat template cannot be loaded" in capsys.readouterr().err
