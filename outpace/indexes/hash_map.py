"""A hash map from int64 keys to int32 values in two arrays, with open addressing and linear probing.

Keys are not negative; -1 marks a free slot. The number of slots is a power of two, at most three quarters of
them used. Index files store only the keys, in the order of their values, and the map is rebuilt on loading: a
damaged file cannot give a map without free slots, on which probing would not terminate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.compiled_loops import compiled_loop

Keys = NDArray[np.int64]
Values = NDArray[np.int32]
FREE = -1


class HashMap(NamedTuple):
    """Keys and values of a hash map: the first two arguments of the functions of this module."""

    keys: Keys
    values: Values

    @staticmethod
    def empty(capacity: int) -> HashMap:
        """An empty hash map with capacity for `capacity` keys."""
        size = 16
        while 3 * size < 4 * capacity:
            size *= 2
        return HashMap(np.full(size, FREE, np.int64), np.zeros(size, np.int32))

    @staticmethod
    def enumerated(keys: Keys, capacity: int = 0) -> HashMap:
        """A map from each key to its index in `keys`, with capacity for at least `capacity` keys."""
        result = HashMap.empty(max(len(keys), capacity))
        put_all(*result, np.ascontiguousarray(keys))
        return result

    @property
    def capacity(self) -> int:
        return 3 * len(self.keys) // 4

    def grown(self, capacity: int) -> HashMap:
        """The map itself if it has this capacity, else a larger copy."""
        if capacity <= self.capacity:
            return self
        larger = HashMap.empty(max(capacity, 2 * self.capacity))
        copy(*self, *larger)
        return larger

    def keys_by_value(self, size: int) -> Keys:
        """(size,) the key of each value; the values must be 0 to size - 1, each once."""
        used = self.keys != FREE
        result = np.zeros(size, np.int64)
        result[self.values[used]] = self.keys[used]
        return result


@compiled_loop
def first_slot(key: int, size: int) -> int:
    """Hash of a key: the slot where probing begins, below `size`, a power of two."""
    # two multiply-xorshift rounds; the factors are small enough for all products to fit int64
    mixed = ((key >> 32) * 0x9E3779B1 + (key & 0xFFFFFFFF) * 0x2545F491) & 0x7FFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 21)) & 0x7FFFFFFF) * 0x45D9F3B1 & 0x7FFFFFFFFFFFFFFF
    return (mixed ^ (mixed >> 29)) & (size - 1)


@compiled_loop
def find(keys: Keys, values: Values, key: int) -> int:
    """The value of a key, -1 if it is not in the map."""
    slot = first_slot(key, len(keys))
    while keys[slot] != -1:
        if keys[slot] == key:
            return values[slot]
        slot = (slot + 1) & (len(keys) - 1)
    return -1


@compiled_loop
def put(keys: Keys, values: Values, key: int, value: int) -> None:
    """Insert a key or replace its value. The caller must ensure a free slot: see `HashMap.grown`."""
    slot = first_slot(key, len(keys))
    while keys[slot] != -1 and keys[slot] != key:
        slot = (slot + 1) & (len(keys) - 1)
    keys[slot] = key
    values[slot] = value


@compiled_loop
def remove(keys: Keys, values: Values, key: int) -> None:
    """Remove a key, which must be in the map. Later keys of its probe sequence are shifted back into the gap,
    so that probing still reaches them."""
    last = len(keys) - 1
    slot = first_slot(key, len(keys))
    while keys[slot] != key:
        slot = (slot + 1) & last
    ahead = slot
    while True:
        ahead = (ahead + 1) & last
        if keys[ahead] == -1:
            break
        # shift this key into the gap unless its probing begins after the gap
        if ((ahead - first_slot(keys[ahead], len(keys))) & last) >= ((ahead - slot) & last):
            keys[slot] = keys[ahead]
            values[slot] = values[ahead]
            slot = ahead
    keys[slot] = -1


@compiled_loop
def copy(keys: Keys, values: Values, to_keys: Keys, to_values: Values) -> None:
    """Insert all entries into another map."""
    for slot in range(len(keys)):
        if keys[slot] != -1:
            put(to_keys, to_values, keys[slot], values[slot])


@compiled_loop
def put_all(keys: Keys, values: Values, new_keys: Keys) -> None:
    """Insert each of `new_keys` with its index as value."""
    for index in range(len(new_keys)):
        put(keys, values, new_keys[index], index)
