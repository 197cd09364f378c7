"""Duplicates against plain sets of words, in any order and any block."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tasks.clean.dedup import NONE, first_of, marks, near_duplicates
from tasks.clean.grams import grams, units

CHANCE = random.Random(11)
WORDS = [f"{CHANCE.choice('bdfgklmnprst')}{n}" for n in range(400)]


def _prose(count: int) -> list[str]:
    return CHANCE.choices(WORDS, k=count)


def _spoilt(words: list[str], share: float) -> list[str]:
    return [CHANCE.choice(WORDS) if CHANCE.random() < share else word for word in words]


def _jaccard(one: list[str], two: list[str]) -> float:
    first, second = (
        {tuple(words[i : i + 5]) for i in range(len(words) - 4)} for words in (one, two)
    )
    return len(first & second) / len(first | second)


def test_words_are_told_apart_by_letters_and_digits() -> None:
    found = units("—The wall's Height, ５m.\nA長城は x２")
    words = [found.text[start:end] for start, end in zip(found.starts, found.ends, strict=True)]
    assert words == ["the", "wall", "s", "height", "5m", "a", "長", "城", "は", "x2"]
    assert not found.unspaced
    assert units("長城は壁。").unspaced
    assert len(units("…").hashes) == len(units("").hashes) == 0
    first, *_, last = units("wall of the wall").hashes
    assert first == last
    assert len(set(units(" ".join(WORDS)).hashes)) == len(set(WORDS))


def test_blocks_do_not_change_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(_prose(50)) + "\n長城は壁。 " + "\n".join(_prose(50))
    whole = units(text)
    monkeypatch.setattr("tasks.clean.grams._BLOCK", 20)
    pieces = units(text)
    for name in ("hashes", "starts", "ends"):
        assert getattr(whole, name).tolist() == getattr(pieces, name).tolist()


def test_numbers_are_the_same_in_every_process() -> None:
    code = "from tasks.clean.dedup import marks; print(marks('The wall of the town.', 2).document)"
    root = Path(__file__).parents[2]
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=root, env={"PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in "12"
    }  # fmt: skip
    assert answers == {f"{marks('the WALL of the town', 2).document}\n"}


def test_equal_documents_and_paragraphs() -> None:
    one = marks("A wall of stone, and a gate.\nHistory\nIt is old, and it stays.", 4)
    two = marks("a wall of stone and a gate\nHistory\n\nIt is new, and it stays.", 4)
    assert one.document != two.document
    assert one.paragraphs[0] == two.paragraphs[0]
    assert one.paragraphs[1] == two.paragraphs[2] == NONE
    assert one.paragraphs[2] != two.paragraphs[3]
    assert marks("A WALL of stone and: a gate; history it is old — and it stays", 4)[0] == one[0]
    assert marks("", 4).document == NONE


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
def test_the_first_of_equals_stays(block: int) -> None:
    numbers = np.array([7, NONE, 5, 7, NONE, 9, 5, 7], np.uint64)
    assert first_of(numbers, block).tolist() == [0, 1, 2, 0, 4, 5, 2, 0]
    assert first_of(numbers[:0], block).tolist() == []


def test_near_duplicates_are_those_of_plain_sets() -> None:
    texts = []
    for _ in range(40):
        original = _prose(300)
        texts += [original, _spoilt(original, 0.005), _spoilt(original, 0.2), _prose(300)]
    signatures = np.stack([marks(" ".join(words), 5).signature for words in texts])
    keeper = near_duplicates(signatures, 0.7)
    for later, words in enumerate(texts):
        alike = [_jaccard(words, texts[earlier]) for earlier in range(later)]
        if keeper[later] != later:
            assert alike[keeper[later]] > 0.55
        else:
            assert max(alike, default=0) < 0.9
    assert sum(keeper != np.arange(len(texts))) >= 38
    assert near_duplicates(signatures, 0.7, block=50).tolist() == keeper.tolist()


def test_signatures_estimate_the_similarity() -> None:
    errors = []
    for share in (0, 0.01, 0.03, 0.1, 0.3):
        one = _prose(800)
        two = _spoilt(one, share)
        estimate = np.mean(marks(" ".join(one), 5).signature == marks(" ".join(two), 5).signature)
        errors.append(abs(estimate - _jaccard(one, two)))
    assert errors[0] == 0
    assert max(errors) < 0.15


def test_what_repeats_a_dropped_document_is_held_against_what_stayed() -> None:
    words = _prose(400)
    chain = [words, _spoilt(words, 0.01)]
    signatures = np.stack([marks(" ".join(each), 5).signature for each in [*chain, chain[1]]])
    assert near_duplicates(signatures, 0.8).tolist() == [0, 0, 0]
    empty = np.zeros((3, signatures.shape[1]), np.uint32)
    assert near_duplicates(empty, 0.8).tolist() == [0, 1, 2]


def test_chinese_is_compared_by_characters() -> None:
    text = (
        "长城是中国古代的军事工程，修筑于春秋战国时期，历代皆有修缮，今天的长城大多建于明代。" * 2
    )
    one, two = marks(text + "它是世界文化遗产。", 5), marks(text + "它是世界文化之遗产。", 5)
    assert near_duplicates(np.stack([one.signature, two.signature]), 0.7).tolist() == [0, 0]
    assert len(grams(units(text).hashes, 10)) == len(units(text).hashes) - 9
