"""Packed conversations as training samples: numpy alone, over arrays that may be memory maps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Pack(NamedTuple):
    """One sample of `sequence_length` positions.

    Attributes:
        tokens: ids, padded at the end, [sequence_length] int64.
        labels: the id that follows in the same conversation, `pad` at its last position,
            [sequence_length] int64.
        loss_mask: 1 where the label bears loss, [sequence_length] float32; 0 at each
            conversation's last position, so that none is asked for another's first token.
        position_ids: from 0 in each conversation, and in the padding, [sequence_length] int64.
        cu_seqlens: where conversations begin and end, from 0 to sequence_length, [conversations +
            1] int32; padding is one more. No position may attend over one of these borders.
    """

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    loss_mask: NDArray[np.float32]
    position_ids: NDArray[np.int64]
    cu_seqlens: NDArray[np.int32]


class Packs:
    """The packs of one split.

    In Megatron's indexed dataset a pack is a document, and a conversation a sequence of it.

    Args:
        ids: of all conversations one after the other, [tokens].
        mask: 1 where a token bears loss, [tokens].
        lengths: of the conversations, [conversations].
        packs: the first conversation of each pack, and the number of all, [packs + 1].
        sequence_length: positions of a sample; no pack has more tokens.
        pad: the id that fills up a sample.
    """

    def __init__(
        self,
        ids: NDArray[Any],
        mask: NDArray[np.uint8],
        lengths: NDArray[np.int32],
        packs: NDArray[np.int64],
        sequence_length: int,
        pad: int,
    ) -> None:
        self.ids, self.mask, self.packs = ids, mask, packs
        self.sequence_length, self.pad = sequence_length, pad
        self._borders = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])

    def __len__(self) -> int:
        return len(self.packs) - 1

    def conversations(self, index: int) -> NDArray[np.int64]:
        """Where the conversations of a pack begin and end in `ids`, [conversations + 1]."""
        return self._borders[self.packs[index] : self.packs[index + 1] + 1]

    def __getitem__(self, index: int) -> Pack:
        """The sample of one pack; see `Pack`."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        borders = self.conversations(index)
        start, stop, size = int(borders[0]), int(borders[-1]), self.sequence_length
        tokens = np.full(size, self.pad, np.int64)
        tokens[: stop - start] = self.ids[start:stop]
        bears = np.zeros(size, np.float32)
        bears[: stop - start] = self.mask[start:stop]
        ends = (borders - start).astype(np.int32)
        if stop - start < size:
            ends = np.append(ends, np.int32(size))
        labels, loss_mask = np.roll(tokens, -1), np.roll(bears, -1)
        labels[ends[1:] - 1], loss_mask[ends[1:] - 1] = self.pad, 0
        positions = np.arange(size) - np.repeat(ends[:-1], np.diff(ends))
        return Pack(tokens, labels, loss_mask, positions, ends)
