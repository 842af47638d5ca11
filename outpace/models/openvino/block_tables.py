"""Block tables: which blocks (pages) of a pool hold the KV entries of each slot.

Letters: S slots, W blocks of the longest slot, with the table's padding.
"""

from __future__ import annotations

import numpy

SCRATCH = 0  # block to which padding tokens are written; every table ends with it
PADDING = 4  # scratch blocks after the blocks of a slot: padding tokens of one inference fit into them


class BlockTables:
    """The blocks of each slot in the order of its text, and the free blocks."""

    def __init__(self, num_blocks: int, width: int) -> None:
        """A pool of `num_blocks` blocks beside the scratch block; tables for slots of `width` blocks."""
        self.num_blocks = num_blocks
        self.array = numpy.full((0, width + PADDING), SCRATCH, numpy.int32)  # (S, W)
        self.version = 0  # changes with every change of a table
        self._free = list(range(num_blocks, 0, -1))  # the next block is taken from the end
        self._lengths: list[int] = []  # number of blocks of each slot

    @property
    def width(self) -> int:
        """Number of blocks that a slot may have."""
        return self.array.shape[1] - PADDING

    @property
    def num_used(self) -> int:
        """Number of blocks held by slots."""
        return self.num_blocks - len(self._free)

    def length(self, slot: int) -> int:
        """Number of blocks of a slot."""
        return self._lengths[slot]

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

    def add_blocks(self, num_blocks: int) -> None:
        """Enlarge the pool to `num_blocks` blocks beside the scratch block."""
        self._free[:0] = range(num_blocks, self.num_blocks, -1)
        self.num_blocks = num_blocks

    def missing(self, slot: int, length: int) -> int:
        """Number of blocks that the pool lacks to give a slot `length` blocks."""
        return max(0, length - self._lengths[slot] - len(self._free))

    def extend(self, slot: int, length: int) -> None:
        """Take free blocks for a slot until it has `length` of them."""
        for index in range(self._lengths[slot], length):
            self.array[slot, index] = self._free.pop()
            self._lengths[slot] = index + 1
            self.version += 1

    def release(self, slot: int) -> None:
        """Give up the blocks of a slot."""
        if self._lengths[slot]:
            self._free += self.array[slot, : self._lengths[slot]].tolist()
            self.array[slot] = SCRATCH
            self._lengths[slot] = 0
            self.version += 1
