"""Evaluation items found in documents, against plain tuples of words."""

from __future__ import annotations

import random

from tasks.clean.contamination import EvaluationSets, Hit

QUESTION = "A man is sitting on a roof. He starts pulling up roofing on a roof, and throws it down."
CHINESE = "请问长城最早修筑于中国历史上的哪一个时期，又是由哪一位皇帝下令连接起来的？"
SETS = EvaluationSets(
    {
        "quiz": ["Too short an item.", QUESTION, "What is " + "the square root of " * 5 + "two?"],
        "ceval": [CHINESE],
    }
)


def test_a_copied_item_is_found_whatever_its_marks_and_case() -> None:
    text = "Once upon a time: a MAN is sitting on a roof; he starts pulling up roofing - on a roof."
    assert SETS.hits(text) == [
        Hit("quiz", 1, 3, "a man is sitting on a roof; he starts pulling up roofing - on")
    ]


def test_twelve_words_are_none() -> None:
    # By hand: from "a man" to "roofing".
    assert SETS.hits("So: a man is sitting on a roof. He starts pulling up roofing felt.") == []
    assert SETS.hits("") == []


def test_items_shorter_than_a_run_are_counted() -> None:
    assert SETS.too_short == {"quiz": 1, "ceval": 0}
    assert SETS.hits("Too short an item.") == []


def test_chinese_is_compared_by_characters() -> None:
    (hit,) = SETS.hits("题目。" + CHINESE[:30] + "答案是秦始皇。")
    assert (hit.name, hit.item) == ("ceval", 0)
    assert SETS.hits("题目。" + CHINESE[:20] + "答案是秦始皇。") == []
    # In an English document, too.
    assert [hit.name for hit in SETS.hits(f"The question {CHINESE} of {QUESTION}")] == [
        "quiz",
        "ceval",
    ]


def test_runs_are_those_of_plain_tuples() -> None:
    chance = random.Random(3)
    words = [f"w{n}" for n in range(6)]
    items = [" ".join(chance.choices(words, k=12)) for _ in range(30)]
    sets = EvaluationSets({"all": items}, words=4)
    known = {tuple(item.split()[i : i + 4]) for item in items for i in range(9)}
    for _ in range(50):
        text = chance.choices(words, k=30)
        expected = sum(tuple(text[i : i + 4]) in known for i in range(27))
        assert sum(hit.runs for hit in sets.hits(" ".join(text))) == expected


def test_no_sets_no_hits() -> None:
    assert EvaluationSets({}).hits(QUESTION) == []
