"""The proof behind the routing: fast encoders on every code point and on 60,000 fuzzed texts.

MEGALINE_TOKENIZERS names further tokenizer.json files and SentencePiece models, joined by `:`.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_cases import SCHEMES, sha256, train
from tokenizers import Regex, pre_tokenizers

from tasks.tokens import ranks
from tasks.tokens.encoders import Measure, Spec, Unsuited, fuzz, load, routing

pytestmark = pytest.mark.slow

CONTEXT = "{0}'s {0} \n{0} {0}1 {0}{0}. a{0}b 1{0}2 A{0}b{0}C '{0}"
MARKS = "e{0}\u0323 e{0}\u0301 e{0}\u0591 e\u0301{0} e\u05b0{0} \u1100{0}\u1161"
GIVEN = [part for part in os.environ.get("MEGALINE_TOKENIZERS", "").split(":") if part]


@pytest.fixture(scope="module", params=[*SCHEMES, "o200k", *GIVEN])
def spec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Spec:
    file = Path(request.param)
    if request.param not in GIVEN:
        file = tmp_path_factory.mktemp("trained") / "tokenizer.json"
        tokenizer = train(request.param if request.param in SCHEMES else "gpt2")
        if request.param == "o200k":
            split = pre_tokenizers.Split(Regex(ranks.PATTERNS["o200k"]), "isolated")
            whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, whole])
        tokenizer.save(str(file))
    own: Any = "sentencepiece" if file.suffix == ".model" else "hugging_face"
    return Spec(own, own, file, sha256(file))


def wrong(spec: Spec, name: Any, texts: Iterator[str]) -> list[str]:
    """The texts whose ids by the fast encoder are not the tokenizer's own."""
    try:
        fast = load(Spec(name, spec.own, spec.file, spec.sha256))
    except Unsuited as error:
        pytest.skip(str(error))
    own, found = load(spec), []
    while batch := [text for _, text in zip(range(5000), texts, strict=False)]:
        theirs, ours = own.encode(batch), fast.encode(batch)
        ends = np.cumsum(theirs[1])[:-1]
        if not all(map(np.array_equal, theirs, ours)):
            pairs = zip(batch, np.split(theirs[0], ends), strict=True)
            found += [
                text for text, ids in pairs if ids.tolist() != fast.encode([text])[0].tolist()
            ]
    return found


def code_points() -> Iterator[str]:
    """Every code point that is not routed anyway, and of the two private planes some."""
    for point in (*range(0xD800), *range(0xE000, 0xF0000), *range(0xF0000, 0x110000, 64)):
        if not routing.is_new(chr(point), False):
            yield CONTEXT.format(chr(point))
            if unicodedata.combining(chr(point)):
                yield MARKS.format(chr(point))


@pytest.mark.parametrize("name", ["gigatoken", "tiktoken"])
def test_every_code_point(spec: Spec, name: Any) -> None:
    assert wrong(spec, name, code_points()) == []


@pytest.mark.parametrize("name", ["gigatoken", "tiktoken"])
def test_fuzzed_texts(spec: Spec, name: Any) -> None:
    own: Any = load(spec)
    measure: Measure = own
    assert wrong(spec, name, fuzz.texts(*measure.vocabulary(), size=60_000)) == []


def test_without_the_routing_letters_are_wrong(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "is_new", lambda text, normalized: False)
    if spec.own == "sentencepiece":
        pytest.skip("SentencePiece asks for no letters")
    texts = (CONTEXT.format(chr(point)) for point in range(0x32000, 0x34000))
    assert len(wrong(spec, "gigatoken", texts)) > 4000
