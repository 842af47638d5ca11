"""Tables of next tokens after a token, a pair or an n-gram, against plain implementations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from outpace.core.tree import Shape
from outpace.indexes.candidates import CandidateTree
from outpace.indexes.compiled_loops import CompiledLoop
from outpace.indexes.tables.adjacency import AdjacencyTable
from outpace.indexes.tables.hash_map import HashMap, find, put, remove
from outpace.indexes.tables.ngram_probabilities import NGramProbabilities
from outpace.indexes.tables.trigrams import TrigramTable

Texts = Callable[..., list[list[int]]]


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


def test_a_row_is_what_was_last_read_after_a_token(loops: str) -> None:
    rng = np.random.default_rng(0)
    table, expected = AdjacencyTable(20, 3), dict[int, list[int]]()
    for _ in range(30):
        tokens = rng.integers(0, 20, 12)
        rows = np.argsort(rng.normal(size=(12, 20)))[:, :3]
        table.update(tokens, rows)
        expected |= zip(tokens.tolist(), rows.tolist(), strict=True)  # of equal tokens the last
    assert {token: table.successors(token) for token in range(20) if table.successors(token)} == expected
    assert table.nbytes == 20 * 3 * 4 and table.metadata == {"known": len(expected)}


def test_a_draft_follows_the_template_level_by_level(loops: str) -> None:
    rng = np.random.default_rng(1)
    shape = Shape((0, 0, 0, 0, 1, 1, 2, 5, 5, 8))
    for _ in range(50):
        table = AdjacencyTable(9, 3)  # narrower than the template
        known = rng.permutation(9)[: rng.integers(0, 10)].tolist()
        for token in known:
            table.update([token], [rng.permutation(9)[:3].tolist()])
        root = int(rng.integers(0, 9))
        tokens, parents, place, rank, sums = list[int](), list[int](), {0: -1}, Counter[int](), {0: 0}
        for node, parent in enumerate(shape.parents, 1):
            r = rank[parent]
            rank[parent] += 1
            if parent not in place:
                continue
            row = table.successors(root if parent == 0 else tokens[place[parent]])
            if r < len(row):
                place[node], sums[node] = len(tokens), sums[parent] + r
                tokens.append(row[r])
                parents.append(place[parent])
        expected = [1 / (1 + sums[node]) for node in place if node]
        assert table.draft(root, shape) == CandidateTree(tokens, parents, expected, 1 if tokens else 0)


def test_rows_that_do_not_fit_are_refused() -> None:
    table = AdjacencyTable(9, 3)
    table.update([], [])
    for tokens, rows in (
        ([1], [[1, 2]]),
        ([9], [[1, 2, 3]]),
        ([1], [[1, 2, 9]]),
        ([1], [[1, 2, -1]]),
        ([], [[1, 2, 3]]),
    ):
        with pytest.raises(ValueError, match="give 3 successors for each, of 9 tokens"):
            table.update(tokens, rows)
    with pytest.raises(ValueError, match="not one of"):
        table.draft(9, Shape((0,)))


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


class PlainNGrams:
    """The same with dicts."""

    def __init__(self, longest: int, width: int, capacity: int) -> None:
        self.longest, self.width, self.capacity = longest, width, capacity
        self.rows: dict[tuple[int, ...], dict[int, np.float32]] = {}
        self.visits = Counter[tuple[int, ...]]()

    def update(self, tokens: list[int], ids: list[list[int]], probs: list[list[float]]) -> None:
        for back, (seen, p) in enumerate(zip(reversed(ids), reversed(probs), strict=True)):
            assert back < len(tokens) and len(seen) == len(p)
        for index, (seen, p) in enumerate(zip(ids, probs, strict=True)):
            end = len(tokens) - len(ids) + index + 1
            for n in range(2, min(self.longest, end) + 1):
                key = tuple(tokens[end - n : end])
                if key not in self.rows and len(self.rows) >= self.capacity:
                    break
                old, k, new = self.rows.get(key, {}), self.visits[key], dict(zip(seen, p, strict=True))
                mean = {
                    token: k / (k + 1) * float(old.get(token, 0)) + new.get(token, 0.0) / (k + 1)
                    for token in {*old, *new}
                }
                best = sorted(mean, key=lambda token: (-mean[token], token))[: self.width]
                self.rows[key] = {token: np.float32(mean[token]) for token in best}
                self.visits[key] += 1

    def lookup(self, tokens: list[int]) -> tuple[int, list[int], list[float]]:
        for n in range(min(self.longest, len(tokens)), 1, -1):
            if (row := self.rows.get(tuple(tokens[-n:]))) is not None:
                return n, list(row), [float(mean) for mean in row.values()]
        return 0, [], []


def test_ngrams_have_the_mean_of_what_was_observed(loops: str) -> None:
    rng = np.random.default_rng(0)
    for longest, width, capacity in ((4, 5, 1 << 10), (3, 2, 20)):
        table, plain = NGramProbabilities(longest, width, capacity), PlainNGrams(longest, width, capacity)
        for _ in range(60):
            tokens = rng.integers(0, 4, rng.integers(1, 12)).tolist()
            num, best = int(rng.integers(0, len(tokens) + 1)), int(rng.integers(1, width + 1))
            ids = [rng.permutation(8)[:best].tolist() for _ in range(num)]
            probs = [np.sort(rng.dirichlet(np.ones(best)))[::-1].tolist() for _ in range(num)]
            table.update(tokens, ids, probs)
            plain.update(tokens, ids, probs)
            for query in (tokens, tokens[:-1], rng.integers(0, 4, 5).tolist(), [3], []):
                n, found, means = table.lookup(query)
                expected = plain.lookup(query)
                assert (n, found) == expected[:2] and means == pytest.approx(expected[2], rel=1e-6)
                (place,) = table.rows([([-1] * longest + query)[-longest:]])
                assert table.tokens[place, : len(found)].tolist() == found if n else place == -1
        assert len(table) == len(plain.rows) <= capacity
        assert table.nbytes == sum(
            array.nbytes for array in [table.tokens, table.means, table.visits, *table.map, table.size]
        )
        table.clear()
        assert len(table) == 0 and table.lookup([1, 2, 3]) == (0, [], []) and not len(table.rows([]))


def test_observations_that_do_not_fit_are_refused() -> None:
    table = NGramProbabilities(width=2)
    with pytest.raises(ValueError, match="n <= 1 tokens and K <= 2"):
        table.update([1], [[1], [2]], [[0.5], [0.5]])
    with pytest.raises(ValueError, match="K <= 2"):
        table.update([1, 2], [[1, 2, 3]], [[0.5, 0.2, 0.1]])


def test_both_ways_of_running_fill_the_same_tables(monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    pytest.importorskip("numba")

    def fill() -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        trigrams, ngrams = TrigramTable.build(texts(5, 10), 4, 6), NGramProbabilities(capacity=200)
        for text in texts(6, 30):
            trigrams.adapt(text)
            if len(text) > 3:
                ngrams.update(text, rng.integers(0, 50, (3, 1)), rng.random((3, 1)))
        return [*trigrams.arrays.values(), *ngrams.arrays.values()]

    compiled = fill()
    monkeypatch.setattr(CompiledLoop, "__call__", lambda self, *arguments: self.plain(*arguments))
    for one, other in zip(compiled, fill(), strict=True):
        assert np.array_equal(one, other)


def test_a_template_is_filled_with_the_likeliest_after_the_longest_ngrams(loops: str) -> None:
    rng = np.random.default_rng(2)
    table = NGramProbabilities(3, 4)
    text = rng.integers(0, 6, 200).tolist()
    for end in range(2, len(text)):
        probs = rng.dirichlet(np.ones(6))
        ids = np.argsort(-probs)[:4]
        table.update(text[max(0, end - 3) : end], [ids.tolist()], [probs[ids].tolist()])
    shape = Shape((0, 0, 0, 0, 0, 1, 1, 2, 6, 9))  # wider than the table
    for context in ([1], [5, 9], text[:7], text[-3:], [0, 1, 2, 3, 4, 5]):
        tokens, parents, weights, matched = table.draft(context, shape)
        expected: list[tuple[int, int, float]] = []
        stands, texts = {0: -1}, {0: context}
        for node, parent in enumerate(shape.parents, 1):
            if parent not in texts:
                continue
            _, known, means = table.lookup(texts[parent])
            rank = shape.children[parent].index(node)
            if rank < len(known):
                above = stands[parent]
                stands[node], texts[node] = len(expected), [*texts[parent], known[rank]]
                expected.append((known[rank], above, means[rank] * (expected[above][2] if above >= 0 else 1)))
        assert list(zip(tokens, parents, strict=True)) == [each[:2] for each in expected]
        assert weights == pytest.approx([each[2] for each in expected])
        assert matched == bool(expected)
