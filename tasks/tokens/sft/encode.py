"""Chat rows to token ids and the mask of the tokens that bear loss, a block of a file at a time.

A conversation is tokenized once, as a whole; characters decide which tokens are the answers'.
"""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from tasks.tokens.indexed import Ids, best_dtype
from tasks.tokens.lines import Block, lines, parse
from tasks.tokens.sft import answers, rows
from tasks.tokens.sft.template import Refused, Template

Mask = NDArray[np.uint8]
Bears = Literal["answers", "all"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_BATCH = 1 << 18
COUNTED = ("answers", "answers_without_end", "straddling_tokens", "truncated")


@dataclass(frozen=True)
class Rules:
    """What decides on ids and mask.

    Attributes:
        tokenizer: a tokenizer.json.
        sha256: its digest.
        vocab_size: the model's.
        template: the model's.
        sequence_length: tokens of a pack, so of a conversation at most.
        loss: which tokens bear loss: those of the answers, or all.
        too_long: what becomes of a longer conversation: set aside, or cut at its end.
    """

    tokenizer: Path
    sha256: str
    vocab_size: int
    template: Template
    sequence_length: int
    loss: Bears = "answers"
    too_long: Literal["drop", "truncate"] = "drop"


@dataclass(frozen=True)
class Chat:
    """One conversation.

    Attributes:
        ids: [tokens].
        mask: 1 where a token bears loss, [tokens].
        note: `id` of the row, `source` (its file), `range` (first byte there, unpacked, and end).
    """

    ids: Ids
    mask: Mask
    note: dict[str, Any]


@dataclass
class Encoded:
    """A block's conversations in order, what was set aside, and counts of what is remarkable."""

    chats: list[Chat] = field(default_factory=list)
    set_aside: list[dict[str, Any]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def encode(rules: Rules, block: Block) -> Encoded:
    """Render and tokenize a block's conversations; what cannot be is set aside with the reason."""
    result, batch = Encoded(), _Batch(rules)
    for line in lines(block):
        place = {"source": block.file.name, "range": [line.start, line.stop]}
        try:
            conversation = _conversation(parse(line), rules.template)
            found = answers.find(rules.template, conversation)
        except ValueError as error:
            result.set_aside.append({**place, "reason": str(error)})
            continue
        batch.add(found, {"id": conversation.id, **place})
        if batch.characters >= _BATCH:
            batch.encode(result)
    batch.encode(result)
    return result


class _Batch:
    """Conversations that are tokenized together; an encoding takes far more than its text."""

    def __init__(self, rules: Rules) -> None:
        self._rules, self.characters = rules, 0
        self._read: list[tuple[answers.Answers, dict[str, Any]]] = []
        self._tokenizer, longest_token = _tokenizer(rules.tokenizer, rules.sha256)
        self._longest = rules.sequence_length * longest_token

    def add(self, found: answers.Answers, note: dict[str, Any]) -> None:
        self._read.append((found, note))
        self.characters += min(len(found.text), self._longest)

    def encode(self, result: Encoded) -> None:
        # What is cut off a text is more than a pack holds.
        texts = [found.text[: self._longest] for found, _ in self._read]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        for (found, note), encoding in zip(self._read, encodings, strict=True):
            cut = len(found.text) > self._longest
            _add(result, self._rules, found, encoding, note, cut)
        self._read, self.characters = [], 0


def mask(found: answers.Answers, encoding: Encoding) -> tuple[Mask, int]:
    """Which tokens are the answers'.

    A token that reaches over an answer's border is the answer's, unless all that it holds of the
    answer is white space, and of what is outside it holds more than that.

    Returns:
        1 for the answers' tokens, [tokens]; how many of them hold other words, too.
    """
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    starts, stops = offsets[:, 0], offsets[:, 1]
    bears, straddling = np.zeros(len(offsets), np.uint8), 0
    for answer in found.answers:
        first = int(np.searchsorted(stops, answer.start, "right"))
        last = int(np.searchsorted(starts, answer.stop, "left"))
        bears[first:last] = 1
        border = (starts[first:last] < answer.start) | (stops[first:last] > answer.stop)
        for token in (first + np.flatnonzero(border)).tolist():
            start, stop = int(starts[token]), int(stops[token])
            inside = found.text[max(start, answer.start) : min(stop, answer.stop)].strip()
            outside = found.text[start : answer.start] + found.text[answer.stop : stop]
            bears[token] = bool(inside or not outside.strip())
            straddling += bool(inside and outside.strip())
    return bears, straddling


def _add(
    result: Encoded,
    rules: Rules,
    found: answers.Answers,
    encoding: Encoding,
    note: dict[str, Any],
    cut: bool,
) -> None:
    ids = np.array(encoding.ids, best_dtype(rules.vocab_size))
    bears, straddling = mask(found, encoding)
    if rules.loss == "all":
        bears[:] = 1
    # Nothing stands before the first token that it could be predicted from.
    bears[:1] = 0
    counts = Counter(
        answers=len(found.answers),
        answers_without_end=sum(not answer.closed for answer in found.answers),
        straddling_tokens=straddling,
    )
    if len(ids) > (longest := rules.sequence_length) or cut:
        if rules.too_long == "drop":
            size = {"characters": len(found.text)} if cut else {"tokens": len(ids)}
            result.set_aside.append({**note, "reason": "longer than sequence_length", **size})
            return
        ids, bears = ids[:longest], bears[:longest]
        counts["truncated"] += 1
    if not bears.any():
        result.set_aside.append({**note, "reason": "no token bears loss", "tokens": len(ids)})
        return
    result.counts += counts
    result.chats.append(Chat(ids, bears, note))


def _conversation(row: dict[str, Any] | str, template: Template) -> rows.Conversation:
    """Refuse, beside broken rows, text that the tokenizer would take for the end of a turn."""
    if isinstance(row, str):
        raise ValueError(row)
    conversation = rows.read(row)
    for text in _strings([conversation.id, conversation.messages, conversation.tools]):
        if token := template.control_token.search(text):
            raise Refused(f"a message holds the special token {token.group()}")
        if not text.isascii() and _SURROGATE.search(text):
            raise Refused("half a surrogate pair, which is no character")
    return conversation


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


@functools.cache
def _tokenizer(path: Path, sha256: str) -> tuple[Tokenizer, int]:
    """The tokenizer, and how many characters its longest token has at most."""
    # A worker is one processor. And a process that has used the library's own threads complains on
    # the terminal at each child it starts.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    tokenizer = Tokenizer.from_file(str(path))
    # It would add what the template writes itself, and some cut white space off the offsets.
    tokenizer.post_processor = None
    return tokenizer, max(map(len, tokenizer.get_vocab(with_added_tokens=True)))
