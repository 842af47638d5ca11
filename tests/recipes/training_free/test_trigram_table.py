"""The table of trigrams against the same with dictionaries."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from outpace.indexes.compiled_loops import CompiledLoop
from outpace.recipes.training_free.aded.trigram_table import TrigramTable

Texts = Callable[..., list[list[int]]]


class PlainTrigrams:
    """The same with dicts."""

    def __init__(self, documents: list[list[int]], width: int, capacity: int) -> None:
        self.width, self.capacity, self.added = width, capacity, list[tuple[int, int]]()
        counts = defaultdict[tuple[int, int], Counter[int]](Counter)
        for text in documents:
            for a, b, c in zip(text, text[1:], text[2:], strict=False):
                counts[a, b][c] += 1
        self.rows = {
            pair: self.best({c: np.float32(n / after.total()) for c, n in after.items()})
            for pair, after in counts.items()
        }

    def best(self, row: dict[int, np.float32]) -> dict[int, np.float32]:
        return dict(sorted(row.items(), key=lambda each: (-each[1], each[0]))[: self.width])

    def adapt(self, context: list[int]) -> None:
        context = context[-16:]
        for a, b, c in zip(context, context[1:], context[2:], strict=False):
            if (a, b) not in self.rows:
                self.added.append((a, b))
                if len(self.added) > self.capacity:
                    del self.rows[self.added.pop(0)]
            row = dict(self.rows.get((a, b), {}))
            row[c] = np.float32(min(float(row.get(c, 0)) + float(np.float32(0.04)), 3.0))
            self.rows[a, b] = self.best(row)


def test_trigrams_are_conditional_frequencies_that_adapt(loops: str, texts: Texts) -> None:
    documents = texts(0, 12)
    for width, capacity in ((12, 1 << 16), (2, 3)):
        table, plain = (
            TrigramTable.build(documents, width, capacity),
            PlainTrigrams(documents, width, capacity),
        )
        for context in [[], [1], *texts(1, 40), [9, 8] * 8 * 20, *([[1, 0, 1] * 5] * 20)]:
            shifted = [token + 1 for token in context]
            for each in (context, shifted):
                table.adapt(each)
                plain.adapt(each)
            for pair in {*plain.rows, (5, 5), (3, 9)}:
                expected = [(c, float(w)) for c, w in plain.rows.get(pair, {}).items()]
                assert table.successors(*pair) == expected
        assert table.metadata == {"pairs": len(plain.rows), "capacity": capacity}
        assert table.nbytes == sum(
            array.nbytes for array in [table.pairs, table.tokens, table.weights, *table.map, table.counts]
        )


def test_weights_stop_at_the_cap(loops: str) -> None:
    table = TrigramTable()
    for _ in range(200):
        table.adapt([1, 2, 3])
    assert table.successors(1, 2) == [(3, 3.0)]
    table.adapt([1, 2, 4], step=0.5)
    assert table.successors(1, 2) == [(3, 3.0), (4, 0.5)]
    assert table.successors(2, 3) == []


def test_pairs_added_later_take_bounded_memory() -> None:
    table, rng, sizes = TrigramTable(capacity=500), np.random.default_rng(0), set[int]()
    for _ in range(300):
        table.adapt(rng.integers(0, 1000, 16).tolist())
        sizes.add(table.nbytes)
    assert max(sizes) <= 500 * (8 + 12 * 8) + 1024 * 12 + 16


def test_both_ways_of_running_fill_the_same_trigrams(monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    pytest.importorskip("numba")

    def fill() -> list[np.ndarray]:
        trigrams = TrigramTable.build(texts(5, 10), 4, 6)
        for text in texts(6, 30):
            trigrams.adapt(text)
        return list(trigrams.arrays.values())

    compiled = fill()
    monkeypatch.setattr(CompiledLoop, "__call__", lambda self, *arguments: self.plain(*arguments))
    for one, other in zip(compiled, fill(), strict=True):
        assert np.array_equal(one, other)
