"""What goes is decided by the order of the corpus, in whatever shards it lies."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from tasks.clean.dedup import marks
from tasks.clean.duplicates import Duplicates, Plan, plan, write_marks

CHANCE = random.Random(2)
WORDS = [f"{CHANCE.choice('bdfgklmnprst')}{n}" for n in range(300)]


def _prose(count: int) -> str:
    return " ".join(CHANCE.choices(WORDS, k=count))


FIRST, SECOND, THIRD = _prose(200), _prose(200), _prose(200)
SHARED = _prose(20)
CORPUS = [
    f"{FIRST}\nHistory\n{SHARED}",
    f"{SECOND}\nHistory\n{SECOND[:300]}",
    f"{FIRST.upper()}!\nHistory\n\n{SHARED}",  # the first again
    f"{FIRST} And more.\nHistory\n{SHARED}",  # nearly the first
    f"{FIRST} And more.\nHistory\n{SHARED}.",  # the same once more
    f"{THIRD}\n{SHARED}\nHistory",
    "",
    "",
]


def _plan(tmp_path: Path, cuts: list[int], corpus: list[str] = CORPUS, **options: object) -> Plan:
    chosen = Duplicates.model_validate(options)
    edges = [0, *cuts, len(corpus)]
    folders = []
    for number, (start, stop) in enumerate(pairwise(edges)):
        folders.append(tmp_path / f"marks-{number}")
        texts = corpus[start:stop]
        write_marks(folders[-1], (marks(text, chosen.min_repeated_words) for text in texts))
    (tmp_path / "work").mkdir()
    return plan(folders, tmp_path / "work", chosen)


def _gone(found: Plan) -> dict[int, tuple[int, str | None]]:
    return {
        document: (int(keeper), found.reason(document))
        for document, keeper in enumerate(found.keeper)
        if keeper != document
    }


@pytest.mark.parametrize("cuts", [[], [1], [0, 3, 3, 8]])
def test_equal_documents(tmp_path: Path, cuts: list[int]) -> None:
    found = _plan(tmp_path, cuts, duplicates="exact")
    assert _gone(found) == {2: (0, "duplicate"), 4: (3, "duplicate")}


@pytest.mark.parametrize("cuts", [[], [4]])
def test_nearly_equal_documents_repeat_the_one_that_stays(tmp_path: Path, cuts: list[int]) -> None:
    found = _plan(tmp_path, cuts, duplicates="near")
    assert _gone(found) == {
        2: (0, "duplicate"),
        3: (0, "near_duplicate"),
        4: (0, "near_duplicate"),
    }


def test_the_order_decides_who_stays(tmp_path: Path) -> None:
    found = _plan(tmp_path, [], CORPUS[::-1], duplicates="near")
    assert {CORPUS[::-1].index(CORPUS[document]) for document in (0, 2, 3)} == set(_gone(found))


@pytest.mark.parametrize("cuts", [[], [2, 5]])
def test_repeated_paragraphs(tmp_path: Path, cuts: list[int]) -> None:
    found = _plan(tmp_path, cuts, duplicates="exact", drop_repeated_paragraphs=True)
    texts = [found.kept_lines(document, text) for document, text in enumerate(CORPUS)]
    assert texts[0] == (CORPUS[0], [])
    # The heading above it goes, too: nothing else was below it.
    gone = [("empty_section", "History"), ("repeated_paragraph", SHARED)]
    assert texts[3] == (f"{FIRST} And more.", gone)
    assert texts[5] == (f"{THIRD}\nHistory", gone[1:])
    # Of a document that goes nothing is asked.
    assert texts[2] == (CORPUS[2], [])


def test_a_paragraph_of_a_document_that_goes_is_no_first(tmp_path: Path) -> None:
    corpus = [FIRST, f"{FIRST} And\n{SHARED}", f"{SECOND}\n{SHARED}"]
    found = _plan(tmp_path, [1], corpus, duplicates="near", drop_repeated_paragraphs=True)
    assert found.reason(1) == "near_duplicate"
    assert found.kept_lines(2, corpus[2]) == (corpus[2], [])


def test_nothing_goes_unasked(tmp_path: Path) -> None:
    found = _plan(tmp_path, [3])
    assert _gone(found) == {}
    assert found.kept_lines(5, CORPUS[5]) == (CORPUS[5], [])


def test_an_empty_corpus(tmp_path: Path) -> None:
    found = _plan(tmp_path, [], [], duplicates="near", drop_repeated_paragraphs=True)
    assert len(found.keeper) == len(found.repeated) == 0
