"""Datasets outside of a run: Megatron-LM's own files, whatever the input's form, and after a kill.

The files in tests/data/tokens were made by Megatron-LM's tool; make.py there says how.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron_lm_tool import CASES
from tokenizers import Tokenizer

from tasks.core.errors import ConfigError, InputError
from tasks.tokens import lines, shards
from tasks.tokens.preprocess import Options, preprocess

DATA = Path(__file__).parents[1] / "data" / "tokens"
TOY = Path(__file__).parents[2] / "deploy" / "recipes" / "toy"
DOCUMENTS, GPT2 = DATA / "documents.jsonl", DATA / "gpt2"


def run(
    files: list[Path], out: Path, tokenizer: Path = GPT2, workers: int = 1, **options: Any
) -> dict[str, Any]:
    return preprocess(files, out, Options(tokenizer, **options), workers, lambda *_, **__: None)


def made(folder: Path) -> dict[str, bytes]:
    """The datasets in a folder."""
    suffixes = (".bin", ".idx")
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix in suffixes}


def options(flags: tuple[str, ...]) -> dict[str, Any]:
    return {
        "json_keys": ("text", "title") if "--json-keys" in flags else ("text",),
        "append_eod": "--append-eod" in flags,
        "split_sentences": "--split-sentences" in flags,
    }


@pytest.mark.parametrize("tokenizer", ["gpt2", "qwen3"])
@pytest.mark.parametrize("case", CASES)
def test_files_are_those_of_megatron_lms_tool(tmp_path: Path, tokenizer: str, case: str) -> None:
    source, flags = CASES[case]
    facts = run(
        [DATA / f"{source}.jsonl"], tmp_path / case, DATA / tokenizer, **options(flags)
    )  # fmt: skip
    wanted = {
        name: data for name, data in made(DATA / tokenizer).items() if name.startswith(f"{case}_")
    }
    assert made(tmp_path) == wanted
    assert len(wanted) == 2 * len(facts["datasets"])
    assert facts["datasets"]["text"]["dtype"] == {"gpt2": "uint16", "qwen3": "int32"}[tokenizer]
    assert json.loads((tmp_path / f"{case}_tokens.json").read_text()) == facts
    # Of what it was made with nothing is left.
    assert not list(tmp_path.glob(".*"))


def test_the_form_of_the_input_does_not_change_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = DOCUMENTS.read_bytes() * 30
    kinds = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "plain": bytes}
    cut = raw.index(b"\n", len(raw) // 2) + 1
    (tmp_path / "a").write_bytes(raw[:cut].replace(b"\n", b"\r\n"))
    (tmp_path / "b").write_bytes(bz2.compress(raw[cut:].removesuffix(b"\n")))
    inputs = {"halves": [tmp_path / "a", tmp_path / "b"]}
    for kind, pack in kinds.items():
        inputs[kind] = [tmp_path / f"whole.{kind}"]
        inputs[kind][0].write_bytes(pack(raw))
    found = {}
    for number, (kind, files) in enumerate(inputs.items()):
        if number % 2:
            # Blocks that begin and end in the middle of lines.
            monkeypatch.setattr(lines, "_SMALLEST", 333)
            monkeypatch.setattr(lines, "_LARGEST", 333)
        (tmp_path / f"out-{kind}").mkdir()
        facts = run(files, tmp_path / f"out-{kind}" / "x", append_eod=True)
        assert (facts["datasets"]["text"]["documents"], facts["set_aside"]) == (270, 0)
        found[kind] = made(tmp_path / f"out-{kind}")
        monkeypatch.undo()
    assert all(data == found["plain"] for data in found.values())


def test_two_workers_write_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_WORTH_A_PROCESS", {})
    monkeypatch.setattr(shards, "_TEXT_WORTH_A_PROCESS", 1)
    monkeypatch.setattr(lines, "_SMALLEST", 100)
    for workers in (1, 2):
        (tmp_path / str(workers)).mkdir()
        run([DOCUMENTS], tmp_path / str(workers) / "x", workers=workers, append_eod=True)
    assert made(tmp_path / "1") == made(tmp_path / "2")


def test_bad_lines_are_set_aside_and_counted(tmp_path: Path) -> None:
    bad = [
        b'{"text": "cut sho', b"", b"[1]", b'{"title": "no text"}', b'{"text": 7}',
        b'{"text": "half of a pair \\ud83d"}', b'{"text": "\xff"}', b'{"text": [1]}',
    ]  # fmt: skip
    # What JSON does not allow, and Python's reader does, is no fault of the text.
    good = [*DOCUMENTS.read_bytes().splitlines(), b'{"text": "with NaN", "value": NaN}']
    mixed = [line for pair in zip(good, [*bad, b" ", b"x"], strict=True) for line in pair]
    (tmp_path / "mixed").write_bytes(b"\n".join(mixed))
    (tmp_path / "good").write_bytes(b"\n".join(good))
    (tmp_path / "out").mkdir()
    facts = run([tmp_path / "mixed"], tmp_path / "out" / "x")
    (tmp_path / "wanted").mkdir()
    assert run([tmp_path / "good"], tmp_path / "wanted" / "x")["set_aside"] == 0
    assert made(tmp_path / "out") == made(tmp_path / "wanted")
    told = (tmp_path / "out" / "x_set_aside.jsonl").read_text().splitlines()
    aside = [json.loads(line) for line in told]
    raw = (tmp_path / "mixed").read_bytes()
    assert [raw[entry["offset"] :].split(b"\n")[0] for entry in aside] == [*bad, b" ", b"x"]
    assert facts["set_aside"] == len(aside) == 10
    assert [entry["reason"] for entry in aside] == [
        "no JSON", "an empty line", "no JSON object", *["no text"] * 3, "no JSON", "no text",
        "an empty line", "no JSON",
    ]  # fmt: skip
    assert not (tmp_path / "wanted" / "x_set_aside.jsonl").exists()


def test_a_line_without_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LONGEST", 1000)
    monkeypatch.setattr(lines, "_SMALLEST", 300)
    monkeypatch.setattr(lines, "_LARGEST", 300)
    long = b'{"text": "' + b"x" * 5000 + b'"}\n'
    (tmp_path / "in").write_bytes(b'{"text": "a"}\n' + long + b'{"text": "b"}\n')
    facts = run([tmp_path / "in"], tmp_path / "x")
    assert (facts["datasets"]["text"]["documents"], facts["set_aside"]) == (2, 1)


def test_an_empty_file_is_an_empty_dataset(tmp_path: Path) -> None:
    (tmp_path / "in").touch()
    assert run([tmp_path / "in"], tmp_path / "x")["datasets"]["text"]["documents"] == 0


def test_special_tokens_stand_around_each_text(tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    folder.mkdir()
    described = json.loads((TOY / "tokenizer.json").read_text())
    around = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("<a>", "<b>")]
    described["post_processor"] = {
        "type": "TemplateProcessing",
        "pair": [],
        "single": [around[0], {"Sequence": {"id": "A", "type_id": 0}}, around[1]],
        "special_tokens": {
            "<a>": {"id": "<a>", "ids": [1], "tokens": ["<|im_start|>"]},
            "<b>": {"id": "<b>", "ids": [2], "tokens": ["<|im_end|>"]},
        },
    }
    for file in TOY.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "tokenizer.json").write_text(json.dumps(described))
    (tmp_path / "in").write_text('{"text": "ab"}\n{"text": ""}\n{"text": ["a", "b"]}\n')
    run([tmp_path / "in"], tmp_path / "with", folder)
    run([tmp_path / "in"], tmp_path / "without", folder, special_tokens=False)
    ids = {name: np.fromfile(tmp_path / f"{name}_text_document.bin", "<u2").tolist()
           for name in ("with", "without")}  # fmt: skip
    one, two = ids["without"][:-2], ids["without"][-2:]
    assert ids["with"] == [1, *one, 2, 1, 2, 1, two[0], 2, 1, two[1], 2]


def test_marks_that_libraries_put_in_another_order_are_the_tokenizers(tmp_path: Path) -> None:
    # Newer than the Unicode of tokenizers' NFC, older than that of gigatoken's.
    text = "e\u08cd\u0320 and e\u0301\u1abf"
    (tmp_path / "in").write_text(json.dumps({"text": text}) + "\n")
    facts = run([tmp_path / "in"], tmp_path / "x", DATA / "qwen3")
    assert facts["encoder"] == "gigatoken"
    own = Tokenizer.from_file(str(DATA / "qwen3" / "tokenizer.json"))
    assert np.fromfile(tmp_path / "x_text_document.bin", "<i4").tolist() == own.encode(text).ids


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "x_text_document.idx").write_text("mine")
    with pytest.raises(ConfigError, match=r"there already.*x_text_document\.idx"):
        run([DOCUMENTS], tmp_path / "x")
    assert [file.name for file in tmp_path.iterdir()] == ["x_text_document.idx"]


def test_a_record_is_not_lost_to_a_dataset_of_other_keys(tmp_path: Path) -> None:
    run([DOCUMENTS], tmp_path / "x")
    record = (tmp_path / "x_tokens.json").read_bytes()
    with pytest.raises(ConfigError, match=r"there already.*x_tokens\.json"):
        run([DOCUMENTS], tmp_path / "x", json_keys=("title",))
    assert (tmp_path / "x_tokens.json").read_bytes() == record
    assert not (tmp_path / "x_title_document.bin").exists()


@pytest.mark.parametrize("out", [".", "/"])
def test_an_output_must_have_a_name(out: str) -> None:
    with pytest.raises(ConfigError, match="has no name"):
        run([DOCUMENTS], Path(out))


def test_a_file_without_documents_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("no\nJSON\n")
    with pytest.raises(InputError, match="2 lines set aside, the first for: no JSON"):
        run([tmp_path / "in"], tmp_path / "x")
    with pytest.raises(InputError, match=r"the first for: no text in te\.xt"):
        run([DOCUMENTS], tmp_path / "x", json_keys=("te.xt",))
    assert [file.name for file in tmp_path.iterdir()] == ["in"]


def test_only_who_ends_documents_needs_a_token_for_it(tmp_path: Path) -> None:
    described = json.loads((DATA / "qwen3" / "tokenizer.json").read_text())
    described["added_tokens"] = []
    described["model"]["vocab"].pop("<|endoftext|>", None)
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    for wrong in ({"append_eod": True}, {"end_of_document": "<none>"}):
        with pytest.raises(InputError, match="no end-of-document token"):
            run([DOCUMENTS], tmp_path / "x", tmp_path / "tokenizer.json", **wrong)
    facts = run([DOCUMENTS], tmp_path / "x", tmp_path / "tokenizer.json")
    assert facts["end_of_document"] is None
    assert facts["datasets"]["text"]["documents"] == 9


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "in.gz").write_bytes(gzip.compress(DOCUMENTS.read_bytes())[:-20])
    with pytest.raises(InputError, match=r"damaged.*in\.gz"):
        run([tmp_path / "in.gz"], tmp_path / "x")
    assert [file.name for file in tmp_path.iterdir()] == ["in.gz"]


@pytest.mark.parametrize("keys", [(), ("text", "text"), ("a/b",), ("",)])
def test_keys_must_be_names(tmp_path: Path, keys: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="--json-keys"):
        run([DOCUMENTS], tmp_path / "x", json_keys=keys)


def test_the_commands(tmp_path: Path) -> None:
    def megaline(*arguments: str | Path) -> Any:
        command = [sys.executable, "-m", "flows.cli", *map(str, arguments), "--json"]
        return json.loads(subprocess.check_output(command, cwd=DATA.parents[2]))

    told = megaline(
        "tokenize", DOCUMENTS, "--tokenizer", DATA / "gpt2", "--out", tmp_path / "x",
        "--json-keys", "text,title", "--append-eod",
    )  # fmt: skip
    wanted = made(DATA / "gpt2")
    assert {name.replace("x_", "eod_"): data for name, data in made(tmp_path).items()} == {
        name: data for name, data in wanted.items() if name.startswith("eod_")
    }
    assert told["datasets"]["title"]["documents"] == 9
    merged = megaline("merge", tmp_path / "all", *[tmp_path / "x_text_document"] * 2)
    assert (merged["documents"], merged["datasets"]) == (18, 2)
    assert (tmp_path / "all.bin").read_bytes() == 2 * wanted["eod_text_document.bin"]
