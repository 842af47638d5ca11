"""The blocks (pages) of a paged KV cache: how many slots refer to each, and which tokens they hold.

A block whose tokens are known is found by these tokens and the preceding block, so equal tokens after
different prefixes are different blocks. When no slot refers to it any more, it is retained until its memory
is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

Key = tuple[int, bytes]  # serial number of the text's preceding block, and the tokens of the block

START = 0  # in place of a serial number, before the first block of a text


class BlockPool:
    """Numbered blocks: free, held by one slot or several, or retained."""

    def __init__(self, num_blocks: int) -> None:
        """`num_blocks` free blocks, with the numbers from 1 on."""
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks, 0, -1))  # the next block is taken from the end
        self._references: dict[int, int] = {}  # held block -> number of slots that refer to it
        self._retained: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._serial = START  # of the block named last; serial numbers are not used again
        self._named: dict[int, tuple[int, Key]] = {}  # block -> its serial number and its key
        self._found: dict[Key, int] = {}  # key -> block

    @property
    def num_held(self) -> int:
        """Number of blocks to which slots refer."""
        return len(self._references)

    @property
    def num_retained(self) -> int:
        """Number of retained blocks: no slot refers to them, and their tokens are known."""
        return len(self._retained)

    @property
    def num_free(self) -> int:
        """Number of blocks that can be taken."""
        return len(self._free)

    def enlarge(self, num_blocks: int) -> None:
        """Add free blocks until there are `num_blocks` blocks."""
        self._free[:0] = range(num_blocks, self.num_blocks, -1)
        self.num_blocks = num_blocks

    def take(self) -> int:
        """A free block, to which one slot refers from now on."""
        block = self._free.pop()
        self._references[block] = 1
        return block

    def share(self, blocks: Sequence[int]) -> None:
        """Refer to these held or retained blocks from one more slot."""
        for block in blocks:
            self._retained.pop(block, None)
            self._references[block] = self._references.get(block, 0) + 1

    def give_up(self, blocks: Sequence[int]) -> None:
        """Refer to the blocks of a text from one slot fewer."""
        for block in reversed(blocks):  # the end of a text is evicted before its beginning
            if self._references[block] > 1:
                self._references[block] -= 1
                continue
            del self._references[block]
            if block in self._named:
                self._retained[block] = None
            else:
                self._free.append(block)

    def name(self, blocks: Sequence[int], tokens: Sequence[bytes]) -> None:
        """Register the tokens of the first blocks of a text, for `find`."""
        before = START
        for block, own in zip(blocks, tokens, strict=True):
            key = before, own
            known = self._found.get(key)
            if known is None:
                self._forget(block)
                self._serial += 1
                self._found[key], self._named[block] = block, (self._serial, key)
                known = block
            before = self._named[known][0]

    def is_own(self, blocks: Sequence[int]) -> bool:
        """Whether each of these held blocks belongs to one slot alone, and its tokens are not known."""
        return all(self._references[block] == 1 and block not in self._named for block in blocks)

    def find(self, tokens: Sequence[bytes]) -> list[int]:
        """The known blocks of the longest prefix of a text; `tokens` has one element per block."""
        before, blocks = START, list[int]()
        for own in tokens:
            block = self._found.get((before, own))
            if block is None:
                break
            blocks.append(block)
            before = self._named[block][0]
        return blocks

    def evict(self, num_blocks: int) -> None:
        """Free at most `num_blocks` retained blocks, least recently used first."""
        for _ in range(min(num_blocks, len(self._retained))):
            block, _ = self._retained.popitem(last=False)
            self._forget(block)
            self._free.append(block)

    def _forget(self, block: int) -> None:
        """Forget the tokens of a block, if they are known."""
        if (named := self._named.pop(block, None)) is not None:
            del self._found[named[1]]
