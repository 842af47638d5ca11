"""The tree-shape search against brute force, and the acceptance it counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.controllers.shape import Acceptance, best_shape
from outpace.core.context import Sampling
from outpace.core.contracts import Parts
from outpace.core.tree import Shape
from outpace.decode import Session
from outpace.drafters.lm import LM
from outpace.models.toy import Table
from outpace.sampling.law import TargetLaw
from outpace.verifiers.rejection import Rejection

RATES = [0.6, 0.2, 0.1]


def chance(shape: Shape, node: int) -> float:
    if node == 0:
        return 1.0
    parent = shape.parents[node - 1]
    return RATES[shape.children[parent].index(node)] * chance(shape, parent)


def length(shape: Shape) -> float:
    return sum(chance(shape, node) for node in range(len(shape.parents) + 1))


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
    sizes = [len(best_shape(RATES, lambda n, s=s: 1 + s * n, 0.0).shape.parents) for s in (0.0, 0.02, 0.1, 5.0)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 64 and sizes[-1] == 0


def test_a_costly_drafter_makes_a_shallower_tree() -> None:
    cheap, dear = (best_shape(RATES, lambda tokens: 1 + 0.01 * tokens, cost) for cost in (0.01, 0.3))
    assert dear.shape.depth < cheap.shape.depth


def test_nothing_is_drafted_where_nothing_is_accepted() -> None:
    assert best_shape([0.0], lambda tokens: 1.0, 0.0).shape.parents == ()


def test_acceptance_is_counted_by_rank_where_a_node_was_reached() -> None:
    target, draft = Table(4, seed=1), Table(4, seed=2, order=2)
    profile = Acceptance(2)
    parts = Parts(target, LM(draft), Rejection(), Fixed(Shape.branching((2, 2))))
    session = Session(parts, [torch.tensor([0, 1])], [Sampling(1.0, max_tokens=1_200, seed=5)], TargetLaw)
    emitted = []
    for step in session.steps():
        profile.observe(step)
        emitted.append(len(step.emitted[0]))
    rates = profile.rates()
    # every accepted token was one of the two ranks
    assert sum(rates) * profile.reached == pytest.approx(sum(length - 1 for length in emitted[1:]), abs=2)
    assert 0.3 < rates[0] < 0.95 and rates[1] < rates[0]


def test_no_steps_are_no_profile() -> None:
    with pytest.raises(ValueError, match="no draft was verified"):
        Acceptance(2).rates()
