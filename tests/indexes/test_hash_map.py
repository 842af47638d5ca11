"""The hash map against a dictionary."""

from __future__ import annotations

import numpy as np

from outpace.indexes.hash_map import HashMap, find, put, remove


def test_the_hash_map_is_a_map(loops: str) -> None:
    rng = np.random.default_rng(0)
    table, expected = HashMap.empty(4), dict[int, int]()
    for turn in range(3000):
        key = int(rng.integers(0, 30)) << 32 | int(rng.integers(0, 8))
        if key in expected and rng.random() < 0.4:
            remove(*table, key)
            del expected[key]
        else:
            table = table.grown(len(expected) + 1)
            put(*table, key, turn)
            expected[key] = turn
        assert find(*table, key) == expected.get(key, -1)
    used = table.keys >= 0
    assert dict(zip(table.keys[used].tolist(), table.values[used].tolist(), strict=True)) == expected
