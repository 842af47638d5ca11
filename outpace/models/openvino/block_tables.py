"""Block tables: which blocks (pages) of a pool hold the KV entries of each slot.

Letters: S slots, W blocks of the longest slot, with the table's padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from outpace.models.openvino.block_pool import BlockPool

SCRATCH = 0  # block to which padding tokens are written; every table ends with it
PADDING = 8  # scratch blocks after the blocks of a slot: padding tokens of one inference fit into them


class BlockTables:
    """The blocks of each slot in the order of its text. Slots may share the first blocks of their texts."""

    def __init__(self, num_blocks: int, width: int) -> None:
        """A pool of `num_blocks` blocks beside the scratch block; tables for slots of `width` blocks."""
        self.pool = BlockPool(num_blocks)
        self.array = numpy.full((0, width + PADDING), SCRATCH, numpy.int32)  # (S, W)
        self.version = 0  # changes with every change of a table
        self._lengths: list[int] = []  # number of blocks of each slot

    @property
    def width(self) -> int:
        """Number of blocks that a slot may have."""
        return self.array.shape[1] - PADDING

    def length(self, slot: int) -> int:
        """Number of blocks of a slot."""
        return self._lengths[slot]

    def blocks(self, slot: int) -> list[int]:
        """The blocks of a slot."""
        return self.array[slot, : self._lengths[slot]].tolist()

    def grow(self, slots: int) -> None:
        """Add slots without blocks until there are `slots` of them."""
        if (added := slots - len(self._lengths)) > 0:
            self._lengths += [0] * added
            more = numpy.full((added, self.array.shape[1]), SCRATCH, numpy.int32)
            self.array = numpy.concatenate((self.array, more))

    def widen(self, width: int) -> None:
        """Permit slots of `width` blocks."""
        more = numpy.full((len(self.array), width - self.width), SCRATCH, numpy.int32)
        self.array = numpy.concatenate((self.array, more), axis=1)
        self.version += 1

    def begin(self, slot: int, blocks: Sequence[int]) -> None:
        """Let a slot without blocks begin with these blocks, which other slots hold or the pool retains."""
        self.pool.share(blocks)
        self.array[slot, : len(blocks)] = blocks
        self._lengths[slot] = len(blocks)
        self.version += 1

    def extend(self, slot: int, length: int) -> None:
        """Take free blocks for a slot until it has `length` of them."""
        for index in range(self._lengths[slot], length):
            self.array[slot, index] = self.pool.take()
            self._lengths[slot] = index + 1
            self.version += 1

    def release(self, slot: int) -> None:
        """Give up the blocks of a slot."""
        if self._lengths[slot]:
            self.pool.give_up(self.blocks(slot))
            self.array[slot] = SCRATCH
            self._lengths[slot] = 0
            self.version += 1
