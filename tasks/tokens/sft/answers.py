"""Which characters of a rendered conversation are the assistant's answers.

An answer begins after the generation prompt, that is with what a model would write, and ends with
the special token that ends the turn. How a template writes is found out by asking it, not by
reading it: with a message's content exchanged for a mark, what stands before and after the mark
is the template's own, and what stands between in the true text is the message. So it does not
matter whether a template merges turns, strips an earlier turn's thinking, or writes text of its
own. Where the answers of the template are not unambiguous, the conversation is refused.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from tasks.tokens.sft import rows
from tasks.tokens.sft.rows import Conversation, Message
from tasks.tokens.sft.template import Refused, Template

_MARKS = range(0xE000, 0xF900)
"""Characters for private use: one that the conversation does not hold is taken."""


class Answer(NamedTuple):
    """Characters `start` to `stop`; `closed` where a special token ends the turn."""

    start: int
    stop: int
    closed: bool


class Answers(NamedTuple):
    """The rendered conversation and its answers in order, without those that bear no loss."""

    text: str
    answers: list[Answer]


def find(template: Template, conversation: Conversation) -> Answers:
    """Render a conversation and find its answers.

    The arguments of tool calls are given as objects, or as JSON where the template takes no others.

    Raises:
        Refused: the template does not take the conversation, or the answers are ambiguous.
    """
    try:
        return _Finder(template, conversation).answers()
    except Refused:
        spelled = rows.spelled(conversation)
        if spelled is None:
            raise
        try:
            return _Finder(template, spelled).answers()
        except Refused:
            pass
        raise


class _Region(NamedTuple):
    """Where a message stands in the text; `exact` sides border on the template's own text."""

    start: int
    stop: int
    exact_start: bool
    exact_stop: bool


class _Finder:
    def __init__(self, template: Template, conversation: Conversation) -> None:
        self.template, self.conversation = template, conversation
        self.messages = conversation.messages
        self.text, self.blocks = template.render(self.messages, conversation.tools)
        self.control = template.control_token
        self.closing = re.compile(rf"\s*(?:{self.control.pattern})")
        unused = (chr(code) for code in _MARKS if chr(code) not in self.text)
        self.mark = next(unused, "")
        if not self.mark:
            raise Refused("it holds every character for private use")
        roles = [message["role"] for message in self.messages]
        self.places = [place for place, role in enumerate(roles) if role == "assistant"]

    def answers(self) -> Answers:
        found: dict[int, Answer] = {}
        for place in self.places:
            found[place] = self._found(place, found)
            self._check_calls(place, found[place])
        if self.blocks and len({(a.start, a.stop) for a in found.values()}) < len(self.blocks):
            raise Refused("the template's generation blocks hold more than the answers")
        left_out = self.conversation.unweighted
        spans = dict.fromkeys(answer for place, answer in found.items() if place not in left_out)
        return Answers(self.text, list(spans))

    def _found(self, place: int, found: dict[int, Answer]) -> Answer:
        try:
            answer = self._answer(place, found)
            self._check_alone(place, answer)
        except Refused:
            # Some templates refuse a tool's message without a call before it, or hide it.
            added = self._by_prefix(place)
            if added is None:
                raise
            answer = added
        return self._block(place, answer) if self.blocks else answer

    def _check_alone(self, place: int, answer: Answer) -> None:
        """Refuse an answer that holds the results of its calls, too."""
        after = self.messages[place + 1 :] if self.messages[place].get("tool_calls") else []
        results = itertools.takewhile(lambda message: message["role"] == "tool", after)
        for number, _ in enumerate(results, place + 1):
            if self._region(number).start < answer.stop:
                raise Refused(f"the template writes message {number} into the turn that calls it")

    def _check_calls(self, place: int, answer: Answer) -> None:
        for call in self.messages[place].get("tool_calls", ()):
            if call["function"]["name"] not in self.text[answer.start : answer.stop]:
                raise Refused(f"the template does not show the calls of message {place}")

    def _block(self, place: int, answer: Answer) -> Answer:
        """The `generation` block of an answer: its author says what bears loss."""
        try:
            held: Answer | _Region = self._region(place)
        except Refused:
            held = answer
        for start, stop in self.blocks:
            if start <= held.start and held.stop <= stop:
                tokens = list(self.control.finditer(self.text, start, stop))
                closed = bool(tokens) and not self.text[tokens[-1].end() : stop].strip()
                return Answer(start, stop, closed)
        raise Refused(f"the template's generation blocks do not hold message {place}")

    def _answer(self, place: int, found: dict[int, Answer]) -> Answer:
        region = self._region(place)
        start = self._start(place, region, found.get(place - 1))
        if region.exact_stop:
            stop = self._closed(region.stop)
            return Answer(start, stop, stop > region.stop)
        # The turn ends in another token than the marked one did, as that of a tool call may.
        for token in self.control.finditer(self.text, region.start):
            if token.start() < region.stop <= token.end():
                return Answer(start, token.end(), True)
        raise Refused(f"what follows message {place} depends on its content")

    def _start(self, place: int, region: _Region, before: Answer | None) -> int:
        """Where an answer begins: after the generation prompt, else where its content does."""
        if not self._opening:
            bare = self._prefix(place)
            if self.text.startswith(bare) and not self.text[len(bare) : region.start].strip():
                return len(bare)
        elif not (region.exact_start and self.text.endswith(self._opening, 0, region.start)):
            prompt = self._prefix(place, prompt=True)
            if prompt and self.text.startswith(prompt) and len(prompt) <= region.start:
                return len(prompt)
            # Later messages changed the earlier text.
            earliest = self._region(place - 1).stop if place else 0
            header = self.text.rfind(self._opening, earliest, region.start)
            if header >= 0:
                return header + len(self._opening)
            if before and not before.closed and not self._turns_between(before, region):
                # The template merged two messages into one turn.
                return before.stop
        if not region.exact_start:
            raise Refused(f"what precedes message {place} depends on its content")
        return region.start

    def _turns_between(self, before: Answer, region: _Region) -> bool:
        return bool(self.control.search(self.text, before.stop, region.start))

    def _by_prefix(self, place: int) -> Answer | None:
        """What one message more adds to the text before it, where that is an answer for certain."""
        start = self._prefix(place, prompt=bool(self._opening))
        whole = self._prefix(place + 1)
        if not start or not (whole.startswith(start) and self.text.startswith(whole)):
            return None
        marked = self._prefix(place, more=[self._marked(place)])
        # Without a generation prompt, something may stand between it and the answer.
        if not self._opening and not marked[len(start) :].lstrip().startswith(self.mark):
            return None
        tokens = list(self.control.finditer(whole, len(start)))
        if not tokens or whole[tokens[-1].end() :].strip():
            return None
        return Answer(len(start), tokens[-1].end(), True)

    @functools.cached_property
    def _opening(self) -> str:
        """The generation prompt; "" where the template has none."""
        place = next((place for place in self.places if place), 0)
        bare, prompt = self._prefix(place), self._prefix(place, prompt=True)
        return prompt[len(bare) :] if prompt.startswith(bare) else ""

    def _closed(self, stop: int) -> int:
        """Where the turn of an answer ends; `stop` itself where no special token ends it."""
        for number, ending in enumerate(self._ending):
            token = (self.control if number else self.closing).match(self.text, stop)
            if token is None or (number and token.group() != ending):
                break
            stop = token.end()
        return stop

    @functools.cached_property
    def _ending(self) -> list[str]:
        """The special tokens, one after the other, that end an answer where nothing follows it."""
        place = self.places[-1]
        if place == len(self.messages) - 1 and (region := self._region(place)).exact_stop:
            tail = self.text[region.stop :]
        else:
            tail = self._prefix(place, more=[self._marked(place)]).rpartition(self.mark)[2]
        run = re.match(rf"\s*((?:{self.control.pattern})*)", tail)
        return self.control.findall(run.group(1)) if run else []

    def _prefix(self, place: int, prompt: bool = False, more: Sequence[Message] = ()) -> str:
        """The text of the messages before a place; "" where the template takes them not alone."""
        try:
            return self._render([*self.messages[:place], *more], prompt)
        except Refused:
            return ""

    def _region(self, place: int) -> _Region:
        if place in self._together:
            return self._together[place]
        marked = self._render(self._with_marks([place]))
        if marked.count(self.mark) != 1:
            raise Refused(f"the template shows message {place} {marked.count(self.mark)} times")
        head, tail = marked.split(self.mark)
        text, size = self.text, len(self.text)
        exact_start, exact_stop = text.startswith(head), text.endswith(tail)
        start = len(head) if exact_start else _common(text, head)
        stop = size - (len(tail) if exact_stop else _common(text[::-1], tail[::-1]))
        if start > stop:
            raise Refused(f"the template does not show message {place}")
        return _Region(start, stop, exact_start, exact_stop)

    @functools.cached_property
    def _together(self) -> dict[int, _Region]:
        """The regions of all answers by one rendering; none where one at a time may tell more."""
        try:
            pieces = self._render(self._with_marks(self.places)).split(self.mark)
        except Refused:
            return {}
        head, tail = pieces[0], pieces[-1]
        at, end = len(head), len(self.text) - len(tail)
        fits = self.text.startswith(head) and self.text.endswith(tail)
        if len(pieces) != len(self.places) + 1 or not fits:
            return {}
        found = {}
        for place, after in zip(self.places, pieces[1:-1], strict=False):
            stop = self.text.find(after, at, end)
            # Text without a special token could also stand in an answer.
            if stop < 0 or not self.control.search(after):
                return {}
            found[place] = _Region(at, stop, True, True)
            at = stop + len(after)
        found[self.places[-1]] = _Region(at, end, True, True)
        return found if at <= end else {}

    def _with_marks(self, places: list[int]) -> list[Message]:
        return [
            self._marked(place) if place in places else message
            for place, message in enumerate(self.messages)
        ]

    def _marked(self, place: int) -> Message:
        """A message with the mark for all that its author wrote."""
        message = self.messages[place]
        if message["role"] == "assistant":
            return {"role": "assistant", "content": self.mark}
        return {**message, "content": self.mark}

    def _render(self, messages: list[Message], prompt: bool = False) -> str:
        return self.template.render(messages, self.conversation.tools, prompt).text


def _common(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
