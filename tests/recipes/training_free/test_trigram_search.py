"""The search over trigrams: bounds, most weight first, effect of exploration, same result per seed."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from outpace.indexes.candidates import CandidateTree
from outpace.indexes.compiled_loops import CompiledLoop
from outpace.recipes.training_free.aded import trigram_search
from outpace.recipes.training_free.aded.trigram_search import search
from outpace.recipes.training_free.aded.trigram_table import TrigramTable


def paths(found: CandidateTree) -> list[tuple[int, ...]]:
    made: list[tuple[int, ...]] = []
    for token, parent in zip(found.tokens, found.parents, strict=True):
        assert parent < len(made)
        made.append((*(made[parent] if parent >= 0 else ()), token))
    return made


def table(seed: int = 0, tokens: int = 8, length: int = 400) -> TrigramTable:
    random = Random(seed)
    return TrigramTable.build([[min(int(random.paretovariate(0.8)), tokens) - 1 for _ in range(length)]])


@pytest.mark.parametrize("seed", range(5))
def test_the_tree_is_within_its_bounds_and_in_the_table(seed: int) -> None:
    known, own = table(seed), TrigramTable()
    own.adapt([0, 1, 2, 3, 9, 2, 3, 1], step=0.5)
    for nodes, depth in ((64, 4), (10, 2), (1, 1)):
        found = search(known, own, [2, 3], iterations=100, num_nodes=nodes, depth=depth, max_depth=depth + 1)
        drafted = paths(found)
        assert 0 < len(drafted) <= nodes and len(set(drafted)) == len(drafted)
        assert max(map(len, drafted)) <= depth + 1
        for path in drafted:
            text = [2, 3, *path]
            for first, second, third in zip(text, text[1:], text[2:], strict=False):
                either = [*known.successors(first, second), *own.successors(first, second)]
                assert third in [token for token, _ in either]


def test_without_exploration_the_heaviest_paths_are_visited_most() -> None:
    # 0 1 -> 2 (0.6) or 3 (0.4); after 2 weights are small and many, after 3 one is large
    texts = [[0, 1, 2, 10 + each] for each in range(6)] + [[0, 1, 3, 5, 6]] * 4
    known = TrigramTable.build(texts)
    found = search(known, TrigramTable(), [0, 1], iterations=400, num_paths=3, explore=0.0)
    visits = dict(zip(paths(found), found.weights, strict=True))
    # 1 + 0.4 + 1 + 1 is more than 1 + 0.6 + 1/6: the weight of whole paths counts, not that of the first
    # token
    assert (3,) in visits and visits[(3,)] > visits.get((2,), 0)
    assert paths(found)[:3] == [(3,), (3, 5), (3, 5, 6)]


def test_exploration_widens_the_tree() -> None:
    width = []
    for explore in (0.0, 32.0):
        found = [
            search(table(seed), TrigramTable(), [0, 0], iterations=150, explore=explore) for seed in range(6)
        ]
        width.append(np.mean([len({path[:2] for path in paths(each)}) for each in found]))
    assert width[1] > width[0]


def test_the_likeliest_next_tokens_extend_the_paths() -> None:
    known = TrigramTable.build([[0, 1, 2, 3, 4, 5, 6, 7]])
    found = search(known, TrigramTable(), [0, 1], iterations=50)
    assert paths(found)[-1] == (2, 3, 4, 5, 6)  # 4 levels of search, and one token more
    assert search(known, TrigramTable(), [0, 1], iterations=50, max_depth=4).tokens == [2, 3, 4, 5]
    assert search(known, TrigramTable(), [4, 1], iterations=50).tokens == []
    assert search(known, TrigramTable(), [4], iterations=50).tokens == []


def test_weights_of_both_tables_add_up() -> None:
    known, own = TrigramTable.build([[0, 1, 2], [0, 1, 3], [0, 1, 3]]), TrigramTable()
    assert search(known, own, [0, 1], iterations=9).tokens == [3, 2]
    own.adapt([0, 1, 2], step=0.5)
    assert search(known, own, [0, 1], iterations=9, explore=0.0, num_paths=1).tokens == [2]
    own.adapt([0, 1, 4], step=3.0)
    assert search(known, own, [0, 1], iterations=9, explore=0.0, num_paths=1).tokens == [4]


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_gives_the_same_tree_compiled_or_not(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, own = table(seed), TrigramTable()
    own.adapt([3, 1, 0, 0, 1, 1], step=0.3)
    first = [search(known, own, [0, 0], iterations=60, seed=each) for each in range(8)]
    for name, function in vars(trigram_search).items():
        if isinstance(function, CompiledLoop):
            monkeypatch.setattr(trigram_search, name, function.plain)
    assert [search(known, own, [0, 0], iterations=60, seed=each) for each in range(8)] == first
    assert any(each != first[0] for each in first)


def test_tables_are_added_as_their_texts_would_be() -> None:
    one, other, both = TrigramTable(width=20), TrigramTable(width=20), TrigramTable(width=20)
    random = Random(1)
    texts = [[random.randrange(5) for _ in range(16)] for _ in range(2)]
    for text, own in zip(texts, (one, other), strict=True):
        own.adapt(text, step=0.25)
        both.adapt(text, step=0.25)
    one.add(other)
    for first in range(5):
        for second in range(5):
            assert one.successors(first, second) == both.successors(first, second)
    heavy = TrigramTable(width=20)
    heavy.adapt(texts[0], step=3.0)
    one.add(heavy, cap=1.0)
    assert max(weight for row in range(25) for _, weight in one.successors(*divmod(row, 5))) == 1.0


def test_a_full_table_gives_its_newest_pairs_last() -> None:
    small, large = TrigramTable(capacity=4), TrigramTable(capacity=3)
    small.adapt(list(range(9)), step=0.5)  # pairs 3 4 to 6 7 are left
    large.add(small)
    assert [bool(large.successors(first, first + 1)) for first in range(8)] == [False] * 4 + [True] * 3 + [
        False
    ]
