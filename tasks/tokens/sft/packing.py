"""Conversations into packs of at most a given length, whole ones only."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

from tasks.tokens.sft.encode import Chat

WINDOW_PACKS = 64
"""A window holds about as many tokens as this many packs: what is in memory at once."""


def pack(chats: Iterable[Chat], longest: int) -> Iterator[list[Chat]]:
    """Best-fit decreasing over windows of the input.

    Packs come in the order of their first conversations, and conversations in a pack in the order
    of the input; so the packs depend on nothing but the input.

    Args:
        chats: none longer than `longest`.
        longest: tokens of a pack at most.
    """
    window: list[Chat] = []
    tokens = 0
    for chat in chats:
        window.append(chat)
        tokens += len(chat.ids)
        if tokens >= WINDOW_PACKS * longest:
            yield from _packed(window, longest)
            window, tokens = [], 0
    yield from _packed(window, longest)


def best_fit(lengths: list[int], longest: int) -> list[list[int]]:
    """Places of the lengths that go together: the longest first, each where it leaves least room.

    Returns:
        places in rising order, in the order of each pack's first.
    """
    packs: list[list[int]] = []
    rooms: list[tuple[int, int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        length = lengths[place]
        tightest = bisect.bisect_left(rooms, (length, 0))
        if tightest == len(rooms):
            room, number = longest, len(packs)
            packs.append([])
        else:
            room, number = rooms.pop(tightest)
        packs[number].append(place)
        bisect.insort(rooms, (room - length, number))
    return sorted(map(sorted, packs))


def _packed(window: list[Chat], longest: int) -> Iterator[list[Chat]]:
    for places in best_fit([len(chat.ids) for chat in window], longest):
        yield [window[place] for place in places]
