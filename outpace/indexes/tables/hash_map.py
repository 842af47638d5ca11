"""A map from int64 keys to int32 values in two arrays, searched one slot after another.

Keys are not negative; -1 marks a free slot. Sizes are powers of two, and at most three quarters of the slots are used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.compiled_loops import loop

FREE = -1


class HashMap(NamedTuple):
    """What the functions below take."""

    keys: NDArray[np.int64]
    values: NDArray[np.int32]

    @staticmethod
    def empty(room: int) -> HashMap:
        """With room for this many keys."""
        size = 16
        while 3 * size < 4 * room:
            size *= 2
        return HashMap(np.full(size, FREE, np.int64), np.zeros(size, np.int32))

    @property
    def room(self) -> int:
        return 3 * len(self.keys) // 4

    def grown(self, room: int) -> HashMap:
        """The same map with room for at least so many keys."""
        if room <= self.room:
            return self
        wider = HashMap.empty(max(room, 2 * self.room))
        copy(self.keys, self.values, wider.keys, wider.values)
        return wider


@loop
def home(key: int, size: int) -> int:
    """The slot where the search for a key begins."""
    # two rounds of multiply and shift; factors are small enough for every product to fit int64
    mixed = ((key >> 32) * 0x9E3779B1 + (key & 0xFFFFFFFF) * 0x2545F491) & 0x7FFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 21)) & 0x7FFFFFFF) * 0x45D9F3B1 & 0x7FFFFFFFFFFFFFFF
    return (mixed ^ (mixed >> 29)) & (size - 1)


@loop
def find(keys: NDArray[np.int64], values: NDArray[np.int32], key: int) -> int:
    """The key's value, -1 if there is none."""
    slot = home(key, len(keys))
    while keys[slot] != -1:
        if keys[slot] == key:
            return values[slot]
        slot = (slot + 1) & (len(keys) - 1)
    return -1


@loop
def put(keys: NDArray[np.int64], values: NDArray[np.int32], key: int, value: int) -> None:
    """Set the value of a key, new or not."""
    slot = home(key, len(keys))
    while keys[slot] != -1 and keys[slot] != key:
        slot = (slot + 1) & (len(keys) - 1)
    keys[slot] = key
    values[slot] = value


@loop
def remove(keys: NDArray[np.int64], values: NDArray[np.int32], key: int) -> None:
    """Forget a key that is there; what was searched past it moves up."""
    last = len(keys) - 1
    slot = home(key, len(keys))
    while keys[slot] != key:
        slot = (slot + 1) & last
    ahead = slot
    while True:
        ahead = (ahead + 1) & last
        if keys[ahead] == -1:
            break
        # a key may move into the gap unless its search begins after it
        if ((ahead - home(keys[ahead], len(keys))) & last) >= ((ahead - slot) & last):
            keys[slot] = keys[ahead]
            values[slot] = values[ahead]
            slot = ahead
    keys[slot] = -1


@loop
def copy(
    keys: NDArray[np.int64],
    values: NDArray[np.int32],
    to_keys: NDArray[np.int64],
    to_values: NDArray[np.int32],
) -> None:
    """Put everything into another map."""
    for slot in range(len(keys)):
        if keys[slot] != -1:
            put(to_keys, to_values, keys[slot], values[slot])
