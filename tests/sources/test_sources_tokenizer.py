"""Tokenizers made from a GGUF file's facts, against transformers' converters and a plain loop."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import Qwen2Converter, TikTokenConverter

from megatron_bridge.errors import InputError
from megatron_bridge.sources import gguf_tokenizer

TOY = Path(__file__).parents[2] / "deploy" / "recipes" / "toy" / "tokenizer.json"
FILE: Any = SimpleNamespace(name="toy.gguf")
TEXTS = ["In  1234 the  1st\n\n5 x", "Tōkyō 東京 12", "don't  STOP'S 1234567", "e\u0301 café",
         "\t\t x\r\n\r\n y   ", "٣٤٥ 😀 …", " lead", "", "a\n\n\nb"]  # fmt: skip
SPACE = "\u2581"


def byte_level(pre: str, **more: Any) -> dict[str, Any]:
    model = json.loads(TOY.read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    facts = {"model": "gpt2", "pre": pre, "tokens": tokens,
             "merges": [" ".join(merge) for merge in model["merges"]],
             "token_type": [3 if t.startswith("<|") else 1 for t in tokens],
             "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in {**facts, **more}.items()}


def made(facts: dict[str, Any], folder: Path) -> Tokenizer:
    tokens = facts["tokenizer.ggml.tokens"]
    config = {"vocab_size": len(tokens), "max_position_embeddings": 100}
    gguf_tokenizer.write(FILE, facts, config, folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def reference(facts: dict[str, Any]) -> Tokenizer:
    """Qwen2's as transformers makes it."""
    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    converter = Qwen2Converter(SimpleNamespace())
    return converter.converted({token: i for i, token in enumerate(tokens)}, merges)


def test_qwen2_splits_as_transformers_does(tmp_path: Path) -> None:
    facts = byte_level("qwen2")
    ours, theirs = made(facts, tmp_path), reference(facts)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs.encode(text).ids)
    other = made(byte_level("gpt-2"), tmp_path)
    assert any(other.encode(text).ids != theirs.encode(text).ids for text in TEXTS)


def test_llama_3_splits_as_transformers_does_and_begins_with_its_token(tmp_path: Path) -> None:
    facts = byte_level("llama-bpe")
    ours, theirs = made(facts, tmp_path), reference(facts)
    pattern = TikTokenConverter(vocab_file="x").pattern
    theirs.normalizer = None  # type: ignore[assignment]  # which is how none is set
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )  # fmt: skip
    for text in TEXTS:
        assert ours.encode(text).ids == [1, *theirs.encode(text).ids]
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text).ids
    ours = made(byte_level("llama-bpe", add_bos_token=False, add_eos_token=True), tmp_path)
    assert ours.encode("ab").ids[-1] == 2
    assert ours.encode("ab").ids[0] != 1
    pair = made(byte_level("llama-bpe"), tmp_path).encode("ab", "cd")
    assert pair.ids.count(1) == 2
    assert sorted(set(pair.type_ids)) == [0, 1]


def test_words_of_the_vocabulary_need_no_merges_in_llama_3(tmp_path: Path) -> None:
    facts = byte_level("llama-bpe", merges=[], add_bos_token=False)
    word = next(t for t in facts["tokenizer.ggml.tokens"] if len(t) > 2 and t.isascii())
    assert len(made(facts, tmp_path).encode(word, add_special_tokens=False).ids) == 1
    facts = byte_level("qwen2", merges=[])
    assert len(made(facts, tmp_path).encode(word.strip("<|>")).ids) > 1


def test_special_and_users_tokens_are_found_in_text_and_auto_tokenizer_loads(
    tmp_path: Path,
) -> None:
    facts = byte_level("smollm")
    facts["tokenizer.ggml.tokens"] += ["<tool>"]
    facts["tokenizer.ggml.token_type"] += [4]
    facts["tokenizer.chat_template"] = "{{ messages[0].content }}"
    last = len(facts["tokenizer.ggml.tokens"]) - 1
    made(facts, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = loaded.encode("<|im_start|>a<tool>")
    assert (ids[0], ids[-1]) == (1, last)
    assert loaded.decode(ids, skip_special_tokens=True) == "a<tool>"
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token) == (1, 2, None)
    assert loaded.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    assert loaded.model_max_length == 100


def sentencepiece(**more: Any) -> dict[str, Any]:
    """Pieces of a few letters as training makes them: each of two earlier ones, in one way."""
    choice = random.Random(4)
    letters = [SPACE, *"abcde"]
    pieces = {piece: -100.0 for piece in letters}
    while len(pieces) < 50:
        whole = "".join(choice.choices(list(pieces), k=2))
        grown = {**pieces, whole: -float(len(pieces))}
        if len(whole) < 7 and whole not in pieces and all(ways(p, grown) < 2 for p in grown):
            pieces = grown
    pieces |= {SPACE * n: -1e9 for n in range(2, 6)}
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *pieces]
    facts = {"model": "llama", "pre": "default", "tokens": tokens, "bos_token_id": 1,
             "scores": [0.0] * 259 + list(pieces.values()),
             "token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces)}  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in {**facts, **more}.items()}


def ways(piece: str, pieces: dict[str, float]) -> int:
    cuts = range(1, len(piece))
    return sum(piece[:cut] in pieces and piece[cut:] in pieces for cut in cuts)


def merged(text: str, facts: dict[str, Any]) -> list[int]:
    """SentencePiece's way, one merge at a time: the best score, of equal ones the leftmost."""
    tokens, scores = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.scores"]
    known = {token: scores[i] for i, token in enumerate(tokens) if i > 258}
    parts = list(text.replace(" ", SPACE))
    while True:
        pairs = [(-known[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts))
                 if a + b in known]  # fmt: skip
        if not pairs:
            break
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    ids: list[int] = []
    for part in parts:
        ids += [tokens.index(part)] if part in known else [3 + byte for byte in part.encode()]
    return ids


def test_pieces_are_merged_by_score_and_the_rest_is_spelt_in_bytes(tmp_path: Path) -> None:
    facts, choice = sentencepiece(), random.Random(5)
    ours = made(facts, tmp_path)
    bare = made(sentencepiece(add_space_prefix=False, add_bos_token=False), tmp_path / "..")
    for _ in range(300):
        text = "".join(choice.choices("abcde  é\n", k=choice.randrange(1, 30)))
        assert ours.encode(text).ids == [1, *merged(" " + text, facts)], text
        assert ours.decode(ours.encode(text).ids) == text
        assert bare.encode(text).ids == merged(text, facts), text
        assert bare.decode(bare.encode(text).ids) == text


def one_more(name: str, value: Any) -> Any:
    def change(facts: dict[str, Any]) -> None:
        facts[f"tokenizer.ggml.{name}"] = [*facts[f"tokenizer.ggml.{name}"], value]

    return change


def same(name: str, value: Any) -> Any:
    return lambda facts: facts.update({f"tokenizer.ggml.{name}": value})


@pytest.mark.parametrize(
    ("facts", "change", "words"),
    [
        (byte_level("qwen2"), one_more("merges", "no such"), "1 merges of unknown tokens"),
        (byte_level("qwen2"), one_more("merges", "a b c"), "1 merges of unknown tokens"),
        (byte_level("qwen2"), one_more("tokens", "a"), "332 tokens, 331 of them different"),
        (byte_level("qwen2"), one_more("token_type", 1), "token_type of 332 for 331 tokens"),
        (byte_level("qwen2"), same("tokens", "abc"), "no list of texts"),
        (byte_level("qwen2"), same("pre", ["x"]), "not supported"),
        (byte_level("qwen2"), same("model", "bert"), "not supported"),
        (byte_level("qwen2"), same("token_type", 3), "token_type that is no list of numbers"),
        (byte_level("qwen2"), same("token_type", ["a"]), "token_type that is no list of numbers"),
        (byte_level("llama-bpe"), same("bos_token_id", -1), "bos_token_id -1 of 331 tokens"),
        (byte_level("qwen2"), same("padding_token_id", -1), "pad_token_id -1 of 331 tokens"),
        (byte_level("qwen2"), same("eos_token_id", 331), "eos_token_id 331 of 331 tokens"),
        (sentencepiece(), one_more("scores", 1.0), "scores of 314 for 313 tokens"),
        (sentencepiece(), same("scores", None), "scores that is no list of numbers"),
        (sentencepiece(), same("scores", 1.0), "scores that is no list of numbers"),
        (sentencepiece(), same("precompiled_charsmap", [1]), "precompiled_charsmap"),
    ],
)
def test_parts_that_do_not_fit_are_a_sentence(
    facts: dict[str, Any], change: Any, words: str, tmp_path: Path
) -> None:
    changed = dict(facts)
    change(changed)
    with pytest.raises(InputError, match=words):
        made(changed, tmp_path)
