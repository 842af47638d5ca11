"""Blocks shared by texts, against a simulation of what is written to them; known mistakes are found by it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from outpace.models.openvino.block_pool import BlockPool
from outpace.models.openvino.block_tables import PADDING, SCRATCH, BlockTables

SIZE = 4  # tokens of a block
SLOTS, BLOCKS, WIDTH = 5, 24, 8

Text = tuple[int, ...]


def full_blocks(text: Text) -> list[bytes]:
    return [bytes(text[end - SIZE : end]) for end in range(SIZE, len(text) + 1, SIZE)]


class Simulation:
    """Texts in slots, and the text that was written to each block up to its end."""

    def __init__(self, pool: BlockPool, seed: int) -> None:
        self.tables = BlockTables(BLOCKS, WIDTH)
        self.tables.pool = self.pool = pool
        self.tables.grow(SLOTS)
        self.choice = random.Random(seed)
        self.texts: dict[int, Text] = {}  # slot -> its text
        self.written: dict[int, Text] = {}  # block -> the text from its beginning to the end of the block
        self.shared = self.evicted = 0

    def step(self) -> None:
        slot = self.choice.randrange(SLOTS)
        if slot not in self.texts:
            self.join(slot)
        elif self.choice.random() < 0.3:
            self.name(slot)
            self.tables.release(slot)
            del self.texts[slot]
        else:
            self.write(slot, self.tokens(self.choice.randrange(1, 9)))
        if self.choice.random() < 0.3:
            for each in self.texts:
                self.name(each)
        self.check()

    def tokens(self, num: int) -> Text:
        return tuple(self.choice.choice((0, 0, 0, 1)) for _ in range(num))  # beginnings are often the same

    def join(self, slot: int) -> None:
        text = self.tokens(self.choice.randrange(1, 25))
        found = self.pool.find(full_blocks(text[:-1]))
        for index, block in enumerate(found):
            assert self.written[block] == text[: (index + 1) * SIZE], "another text is found"
        self.shared += len(found)
        self.tables.begin(slot, found)
        self.texts[slot] = text[: len(found) * SIZE]
        self.write(slot, text[len(found) * SIZE :])

    def write(self, slot: int, new: Text) -> None:
        """Append tokens to a text, as far as there are blocks."""
        text = (self.texts[slot] + new)[: WIDTH * SIZE]
        more = -(-len(text) // SIZE) - self.tables.length(slot)
        self.evicted += self.pool.num_retained
        self.pool.evict(more - self.pool.num_free)
        self.evicted -= self.pool.num_retained
        text = text[: (self.tables.length(slot) + min(more, self.pool.num_free)) * SIZE]
        self.tables.extend(slot, -(-len(text) // SIZE))
        blocks = self.tables.blocks(slot)
        for position in range(len(self.texts[slot]), len(text)):
            block = blocks[position // SIZE]
            others = [each for each in self.texts if each != slot and block in self.tables.blocks(each)]
            assert not others, "a block of another text is written"
            self.written[block] = text[: position + 1]
        self.texts[slot] = text

    def name(self, slot: int) -> None:
        full = full_blocks(self.texts[slot])
        self.pool.name(self.tables.blocks(slot)[: len(full)], full)

    def check(self) -> None:
        held = Counter(block for slot in self.texts for block in self.tables.blocks(slot))
        assert len(held) == self.pool.num_held, "references are not those of the slots"
        assert len(held) + self.pool.num_retained + self.pool.num_free == BLOCKS, "a block is lost"
        for slot in range(SLOTS):
            text, blocks = self.texts.get(slot, ()), self.tables.blocks(slot)
            assert len(blocks) == -(-len(text) // SIZE) and len(set(blocks)) == len(blocks)
            for index, block in enumerate(blocks):
                assert self.written[block] == text[: (index + 1) * SIZE], "a block holds another text"
            assert set(self.tables.array[slot, len(blocks) :].tolist()) == {SCRATCH}
            assert self.tables.array.shape[1] - len(blocks) >= PADDING


def simulate(pool: type[BlockPool], seed: int, steps: int = 400) -> Simulation:
    found = Simulation(pool(BLOCKS), seed)
    for _ in range(steps):
        found.step()
    for slot in list(found.texts):
        found.tables.release(slot)
        del found.texts[slot]
    found.check()
    assert found.pool.num_held == 0
    found.pool.evict(BLOCKS)
    assert found.pool.num_free == BLOCKS and not found.pool.find([bytes(SIZE)])
    return found


def test_every_slot_has_the_blocks_of_its_own_text() -> None:
    found = [simulate(BlockPool, seed) for seed in range(20)]
    assert all(each.shared > 20 for each in found) and all(each.evicted > 20 for each in found)


class CountsNoSharing(BlockPool):
    """Mutant: a slot that shares a block that is held does not count."""

    def share(self, blocks: Sequence[int]) -> None:
        super().share([block for block in blocks if block in self._retained])


class KeepsNames(BlockPool):
    """Mutant: the tokens of an evicted block are still known."""

    def _forget(self, block: int) -> None:
        """Does nothing."""


class IgnoresTheBeginning(BlockPool):
    """Mutant: a block is found by its own tokens alone."""

    def name(self, blocks: Sequence[int], tokens: Sequence[bytes]) -> None:
        for block, own in zip(blocks, tokens, strict=True):
            super().name([block], [own])

    def find(self, tokens: Sequence[bytes]) -> list[int]:
        found = [super(IgnoresTheBeginning, self).find([own]) for own in tokens]
        first = next((index for index, each in enumerate(found) if not each), len(found))
        return [block for each in found[:first] for block in each]


class ReusesSerials(BlockPool):
    """Mutant: the serial number of a block is its own number, so those after an evicted block are found after
    whatever follows it there."""

    def name(self, blocks: Sequence[int], tokens: Sequence[bytes]) -> None:
        before = 0
        for block, own in zip(blocks, tokens, strict=True):
            known = self._found.get((before, own))
            if known is None:
                self._forget(block)
                self._found[before, own], self._named[block] = block, (block, (before, own))
                known = block
            before = self._named[known][0]


class FreesWhatIsHeld(BlockPool):
    """Mutant: the first slot that gives up a shared block frees it."""

    def give_up(self, blocks: Sequence[int]) -> None:
        self._references.update(dict.fromkeys(blocks, 1))
        super().give_up(blocks)


class EvictsNothing(BlockPool):
    """Mutant: blocks without references are neither free nor retained."""

    def give_up(self, blocks: Sequence[int]) -> None:
        super().give_up(blocks)
        self._retained.clear()


def check_block_numbers_used_again(pool: type[BlockPool]) -> None:
    """A block is not found after another text whose last block has the number of the one before it."""
    tables = BlockTables(4, 2)
    tables.pool = pool(4)
    tables.grow(3)
    for slot, text in enumerate(([b"a"], [b"a", b"b"])):  # slot 1 has a block of its own for "a"
        tables.extend(slot, len(text))
        tables.pool.name(tables.blocks(slot), text)
    tables.release(0)
    tables.pool.evict(1)
    tables.extend(2, 1)
    tables.pool.name(tables.blocks(2), [b"c"])
    assert tables.pool.find([b"c", b"b"]) == tables.blocks(2)


def test_block_numbers_can_be_used_again() -> None:
    check_block_numbers_used_again(BlockPool)


@pytest.mark.parametrize(
    "mutant",
    [
        CountsNoSharing,
        KeepsNames,
        IgnoresTheBeginning,
        ReusesSerials,
        FreesWhatIsHeld,
        EvictsNothing,
    ],
)
def test_mistakes_are_found(mutant: type[BlockPool]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        check_block_numbers_used_again(mutant)
        for seed in range(20):
            simulate(mutant, seed)


def test_the_end_of_a_text_is_evicted_before_its_beginning_and_old_texts_before_new_ones() -> None:
    tables = BlockTables(6, 6)
    tables.grow(2)
    texts = [[b"a", b"b", b"c"], [b"x", b"y", b"z"]]
    for slot, text in enumerate(texts):
        tables.extend(slot, 3)
        tables.pool.name(tables.blocks(slot), text)
    tables.release(0)
    tables.release(1)
    for left in ((2, 3), (1, 3), (0, 3), (0, 2)):
        tables.pool.evict(1)
        assert tuple(len(tables.pool.find(text)) for text in texts) == left


def test_memory_is_bounded_over_many_requests() -> None:
    tables = BlockTables(64, 16)
    tables.grow(4)
    choice = random.Random(1)
    for request in range(20_000):
        slot = request % 4
        tables.release(slot)
        text = [bytes([choice.randrange(3)]) for _ in range(choice.randrange(1, 13))]
        tables.begin(slot, tables.pool.find(text))
        tables.pool.evict(len(text) - tables.length(slot) - tables.pool.num_free)
        tables.extend(slot, len(text))
        tables.pool.name(tables.blocks(slot), text)
    pool = tables.pool
    assert len(pool._named) == len(pool._found) <= 64 and len(pool._references) <= 4 * 12
    assert pool.num_held + pool.num_retained + pool.num_free == pool.num_blocks == 64
