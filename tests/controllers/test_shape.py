"""The tree-shape search against brute force."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outpace.core.tree import Shape
from outpace.cost.best_shape import best_shape

RATES = [0.6, 0.2, 0.1]


def probability(shape: Shape, node: int) -> float:
    if node == 0:
        return 1.0
    parent = shape.parents[node - 1]
    return RATES[shape.children[parent].index(node)] * probability(shape, parent)


def length(shape: Shape) -> float:
    return sum(probability(shape, node) for node in range(len(shape.parents) + 1))


def shapes(nodes: int) -> Iterator[Shape]:
    """Every tree with so many draft nodes and at most three children a node."""

    def extend(parents: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(parents) == nodes:
            yield parents
            return
        for parent in range(parents[-1] if parents else 0, len(parents) + 1):
            if parents.count(parent) < 3:
                yield from extend((*parents, parent))

    for parents in extend(()):
        try:
            yield Shape(parents)
        except ValueError:
            continue  # not in growing order of depth


@pytest.mark.parametrize("most", [1, 2, 3, 5, 6])
def test_the_search_finds_the_best_tree_of_every_size(most: int) -> None:
    found = best_shape(RATES, lambda tokens: 1.0, 0.0, nodes=most)
    assert len(found.shape.parents) == most
    assert found.length == pytest.approx(max(length(shape) for shape in shapes(most)))
    assert found.length == pytest.approx(length(found.shape))
    assert found.speedup == pytest.approx(found.length)


def test_a_costly_target_forward_makes_a_smaller_tree() -> None:
    sizes = [
        len(best_shape(RATES, lambda n, s=s: 1 + s * n, 0.0).shape.parents) for s in (0.0, 0.02, 0.1, 5.0)
    ]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 64 and sizes[-1] == 0


def test_a_costly_drafter_makes_a_shallower_tree() -> None:
    cheap, dear = (best_shape(RATES, lambda tokens: 1 + 0.01 * tokens, cost) for cost in (0.01, 0.3))
    assert dear.shape.depth < cheap.shape.depth


def test_nothing_is_drafted_where_nothing_is_accepted() -> None:
    assert best_shape([0.0], lambda tokens: 1.0, 0.0).shape.parents == ()


def test_a_later_candidate_counts_no_better_than_an_earlier_one() -> None:
    noisy = best_shape([0.6, 0.1, 0.3], lambda tokens: 1.0, 0.0, nodes=6)
    assert noisy == best_shape([0.6, 0.1, 0.1], lambda tokens: 1.0, 0.0, nodes=6)
