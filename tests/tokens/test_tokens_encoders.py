"""Every encoder against the tokenizer's own library, and a fast one only where it is equal."""

from __future__ import annotations

import pickle
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from encoder_cases import DOCUMENTS, SCHEMES, sha256, train
from tokenizers import Tokenizer, normalizers

from tasks.tokens.encoders import Spec, Unsuited, choice, fuzz, load, routing
from tasks.tokens.encoders.choice import choose

NEW = ["࢏'s ࢏ ࢏.", "𑏅1", "\U000323b0's", "a𐥀𐥁's b", "\U0001faee x"]
"""Letters of Unicode 16 and 17 (gigatoken 0.10 takes some for none), and an emoji of 15.1."""


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Spec]:
    """A tokenizer.json of each scheme, trained here."""
    made = {}
    for scheme in SCHEMES:
        file = tmp_path_factory.mktemp(scheme) / "tokenizer.json"
        train(scheme).save(str(file))
        made[scheme] = Spec("hugging_face", "hugging_face", file, sha256(file))
    return made


def own_ids(spec: Spec, texts: list[str]) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(spec.file))
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def split(encoded: tuple[np.ndarray, np.ndarray]) -> list[list[int]]:
    ids, lengths = encoded
    assert (ids.dtype, lengths.dtype) == (np.uint32, np.int32)
    return [piece.tolist() for piece in np.split(ids, np.cumsum(lengths))[:-1]]


@pytest.mark.parametrize("fast", [["gigatoken"], ["tiktoken"], []])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_was_chosen_gives_the_tokenizers_own_ids(
    specs: dict[str, Spec], scheme: str, fast: list[Any]
) -> None:
    chosen = choose(specs[scheme], DOCUMENTS[:3], fast)
    assert chosen.facts()["encoder"] == (fast or ["hugging_face"])[0], chosen
    for name in fast:
        assert chosen.compared[name]["difference"] is None
        assert chosen.compared[name]["texts"] > 4000
    texts = [*DOCUMENTS, *NEW, "", "<|endoftext|>", "a<|im_end|> <|endoftext|>b"]
    spec = pickle.loads(pickle.dumps(chosen.spec))
    assert split(load(spec).encode(texts)) == own_ids(spec, texts)
    assert split(load(spec).encode([])) == []


def test_added_tokens_in_a_text_become_themselves(specs: dict[str, Spec]) -> None:
    tokenizer = Tokenizer.from_file(str(specs["gpt2"].file))
    end = tokenizer.token_to_id("<|endoftext|>")
    for name in ("hugging_face", "gigatoken", "tiktoken"):
        spec = Spec(name, "hugging_face", specs["gpt2"].file, specs["gpt2"].sha256)
        assert end in load(spec).encode(["so <|endoftext|> there"])[0]


def test_gigatoken_alone_would_be_wrong_on_new_letters(specs: dict[str, Spec]) -> None:
    """The control of the routing: without it ids differ."""
    import gigatoken

    alone = gigatoken.Tokenizer.from_json(specs["gpt2"].file.read_bytes()).backend
    assert [alone.encode(text).tolist() for text in NEW] != own_ids(specs["gpt2"], NEW)
    assert all(routing.is_new(text, False) for text in NEW[:4])
    known = ["", "abc", "caf\u00e9", "\u4e2d\u6587", "\U0001f468\u200d", "\ue000", "e\u0323\u0301"]
    assert not any(routing.is_new(text, normalized) for text in known for normalized in (0, 1))


def test_marks_that_tokenizers_does_not_order(specs: dict[str, Spec]) -> None:
    """Newer than its normal forms, older than Python's."""
    texts = ["e\u08d3\u0301", "e\u08ca\u0323 b", "e\u1dfa\u0301"]
    for text in texts:
        assert unicodedata.normalize("NFC", text) != normalizers.NFC().normalize_str(text)
    assert all(routing.is_new(text, True) for text in texts)
    for name in ("gigatoken", "tiktoken"):
        spec = Spec(name, "hugging_face", specs["qwen"].file, specs["qwen"].sha256)
        assert split(load(spec).encode(texts)) == own_ids(spec, texts)


def test_whitespace_that_ends_tiktokens_expressions(specs: dict[str, Spec]) -> None:
    text = "a" + " " * 1_000_000 + "b"
    ranks = {bytes([byte]): byte for byte in range(256)}
    plain = tiktoken.Encoding(
        "x", pat_str=r"\s+(?!\S)|\s+|\S+", mergeable_ranks=ranks, special_tokens={}
    )
    with pytest.raises(ValueError, match="stack size"):
        plain.encode_to_numpy(text)
    spec = Spec("tiktoken", "hugging_face", specs["gpt2"].file, specs["gpt2"].sha256)
    assert split(load(spec).encode([text])) == own_ids(spec, [text])


def test_gigatoken_is_made_anew_when_it_has_grown(
    specs: dict[str, Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.tokens.encoders import gigatoken

    sizes = iter(range(0, 10_000, 7))
    monkeypatch.setattr(gigatoken, "_resident", lambda: next(sizes))
    monkeypatch.setattr(gigatoken, "GROWTH", 20)
    monkeypatch.setattr(gigatoken, "CHECKED", 100)
    made: list[int] = []
    renew = gigatoken._Bounded._renew
    monkeypatch.setattr(gigatoken._Bounded, "_renew", lambda self: made.append(1) or renew(self))
    encoder = gigatoken.load(Spec("gigatoken", "hugging_face", specs["qwen"].file, "grown"))
    assert split(encoder.encode(DOCUMENTS)) == own_ids(specs["qwen"], DOCUMENTS)
    assert 3 < len(made) < len(DOCUMENTS)


class Doctored:
    """The tokenizer's own encoder, but for one id of some texts."""

    name: Any = "gigatoken"

    def __init__(self, spec: Spec, wrong: Callable[[list[str], str], bool]) -> None:
        self._own, self._wrong = load(Spec(spec.own, spec.own, spec.file, spec.sha256)), wrong

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, lengths = self._own.encode(texts)
        ids = ids.copy()
        for text, end in zip(texts, np.cumsum(lengths), strict=True):
            if self._wrong(texts, text):
                ids[end - 1] ^= 1
        return ids, lengths


def doctor(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[list[str], str], bool]) -> None:
    def doctored(spec: Spec) -> Any:
        return load(spec) if spec.encoder == spec.own else Doctored(spec, wrong)

    monkeypatch.setattr(choice, "load", doctored)


def test_one_wrong_id_in_the_corpus_is_enough(
    specs: dict[str, Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor(monkeypatch, lambda _, text: "zebra \u0915" in text)
    sample = [*DOCUMENTS, "x" * 5000 + "\n a zebra \u0915\nand more" * 3]
    chosen = choose(specs["gpt2"], sample)
    assert (chosen.spec.encoder, chosen.spec) == ("hugging_face", specs["gpt2"])
    for name in ("gigatoken", "tiktoken"):
        difference = chosen.compared[name]["difference"]
        assert r"zebra \u0915" in difference["text"]
        assert len(difference["text"]) < 120
        assert difference["own"] != difference["fast"]
    assert "nothing faster" in chosen.reason


@pytest.mark.parametrize(
    "needle", ["\u1112", "\r\n", "'ll", "</s>", "\u200d", "<|im_end|>", "a" * 700]
)
def test_one_wrong_id_in_the_fuzz_set_is_enough(
    specs: dict[str, Spec], monkeypatch: pytest.MonkeyPatch, needle: str
) -> None:
    doctor(monkeypatch, lambda _, text: needle in text)
    assert choose(specs["qwen"], DOCUMENTS[:1]).spec.encoder == "hugging_face"


def test_ids_that_depend_on_the_batch_are_refused(
    specs: dict[str, Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor(monkeypatch, lambda texts, text: len(texts) > 1 and text == DOCUMENTS[0])
    chosen = choose(specs["gpt2"], DOCUMENTS[:2])
    assert chosen.spec.encoder == "hugging_face"
    assert "beside" in chosen.compared["gigatoken"]


def test_an_encoder_that_fails_is_refused_with_the_reason(
    specs: dict[str, Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        """As Rust's panics arrive."""

    def panic(texts: list[str], text: str) -> bool:
        raise PanicException("index out of bounds")

    doctor(monkeypatch, panic)
    chosen = choose(specs["gpt2"], DOCUMENTS[:1])
    assert chosen.spec.encoder == "hugging_face"
    assert "index out of bounds" in chosen.compared["gigatoken"]


def test_what_tiktoken_cannot_express_is_said(tmp_path: Path) -> None:
    from tokenizers import pre_tokenizers

    tokenizer = train("gpt2")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(Unsuited, match="one regular expression"):
        load(Spec("tiktoken", "hugging_face", tmp_path / "tokenizer.json", "digits"))


def test_the_fuzz_set_is_the_same_each_time_and_covers_scripts() -> None:
    texts = list(fuzz.texts(["ab", " c"], ["<x>"]))
    assert texts == list(fuzz.texts(["ab", " c"], ["<x>"]))
    held = set("".join(texts))
    assert len(held) > 2500
    for block in range(0x370, 0xD7A4, 0x80):
        known = {chr(c) for c in range(block, block + 0x80) if not routing.is_new(chr(c), False)}
        assert not known or held & known, hex(block)


def test_workers_load_neither_torch_nor_transformers(specs: dict[str, Spec]) -> None:
    for name in ("hugging_face", "gigatoken", "tiktoken"):
        script = (
            "import sys, pathlib\n"
            "from tasks.tokens.encoders import Spec, load\n"
            f"file = pathlib.Path({str(specs['qwen'].file)!r})\n"
            f"spec = Spec({name!r}, 'hugging_face', file, '')\n"
            "load(spec).encode(['a text'])\n"
            "heavy = ('torch', 'transformers', 'megatron', 'awkward', 'pandas')\n"
            "print([m for m in heavy if m in sys.modules])"
        )
        found = subprocess.check_output([sys.executable, "-c", script], text=True)
        assert found.strip() == "[]", name
