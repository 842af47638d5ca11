"""Rank templates: which nodes they hold, and what is counted to fit one."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod
from random import Random

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Shape
from outpace.decode import Session
from outpace.drafters.lookup.rank_template import (
    Ranks,
    accepted_ranks,
    by_accuracy,
    by_level,
    cut,
    falling_accuracies,
    fitted,
    leaning,
    rank_template,
    shape_of,
)
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableTarget
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.rejection import Rejection


def ranks_of(shape: Shape) -> list[Ranks]:
    """The ranks of each node."""
    found: list[Ranks] = [()]
    for node, parent in enumerate(shape.parents, 1):
        found.append((*found[parent], shape.children[parent].index(node)))
    return found[1:]


def test_exact_levels_are_those_of_the_papers_tree() -> None:
    found = ranks_of(rank_template(0, (8, 21, 25, 15, 8, 3), width=8))
    assert Counter(map(len, found)) == {1: 8, 2: 21, 3: 25, 4: 15, 5: 8, 6: 3}
    assert max(max(ranks) for ranks in found) == 7 and (0,) * 6 in found


@pytest.mark.parametrize("nodes", [0, 1, 7, 24, 80])
def test_a_template_of_so_many_nodes_holds_the_heaviest(nodes: int) -> None:
    found = ranks_of(rank_template(nodes, width=8))
    assert len(found) == nodes
    everything = set(found) | {
        (*ranks, child) for ranks in [(), *found] for child in range(8) if len(ranks) < 6
    }
    left = [leaning(ranks) for ranks in everything - set(found)]
    assert all(leaning(ranks) >= max(left) for ranks in found)


def test_eighty_nodes_are_spread_nearly_as_in_the_paper() -> None:
    assert Counter(map(len, ranks_of(rank_template(80, width=8)))) == {1: 8, 2: 21, 3: 25, 4: 19, 5: 6, 6: 1}


def test_narrow_and_impossible_templates() -> None:
    assert ranks_of(by_level((9, 9), leaning, width=2)) == [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    with pytest.raises(ValueError, match="at least one node at every level"):
        rank_template(8, (2, 0), width=2)
    with pytest.raises(ValueError, match="nodes, a width and a depth"):
        rank_template(8, width=0)


def test_cutting_leaves_the_upper_levels() -> None:
    shape = rank_template(24, width=8)
    for depth in range(5):
        assert ranks_of(cut(shape, depth)) == [ranks for ranks in ranks_of(shape) if len(ranks) <= depth]


def test_fitting_keeps_the_nodes_accepted_most() -> None:
    random = Random(1)
    counts = Counter[Ranks]()
    # a node is accepted less often than its parent and earlier siblings
    for ranks in ranks_of(Shape.branching((3, 3, 3))):
        earlier_sibling, parent = (*ranks[:-1], ranks[-1] - 1), ranks[:-1]
        counts[ranks] = random.randint(1, min(counts.get(earlier_sibling, 1000), counts.get(parent, 1000)))
    found = ranks_of(fitted(counts, 12))
    assert sum(counts[ranks] for ranks in found) == sum(sorted(counts.values())[-12:])
    assert len(found) == 12
    for ranks in found:  # with its parent and earlier siblings
        assert ranks[:-1] in [(), *found] and all((*ranks[:-1], rank) in found for rank in range(ranks[-1]))
    assert fitted({(0,): 3, (0, 0): 1, (1,): 0}, 9) == shape_of([(0,), (0, 0)])


def test_accepted_ranks_are_those_of_the_accepted_paths() -> None:
    target, draft = TableTarget(4, seed=1, order=2), TableTarget(4, seed=2, order=2)
    shape = Shape.branching((3, 2))
    parts = Parts(target, DraftModel(draft), Rejection(), Fixed(shape))
    sampling = [SamplingParams(1.0, max_tokens=60, seed=seed) for seed in range(2)]
    steps = list(Session(parts, [torch.tensor([0, 1]), torch.tensor([2])], sampling, LazyTargetProbs).steps())
    counts = accepted_ranks(steps)
    assert set(counts) <= set(ranks_of(shape))
    lengths = [step.draft.tree.forest.depths[leaf] for step in steps for leaf in step.verdict.leaf]
    assert sum(counts.values()) == sum(lengths) > 0
    first = Counter(length for length in lengths if length)
    assert sum(count for ranks, count in counts.items() if len(ranks) == 2) == first[2]


@pytest.mark.parametrize("nodes", [1, 6, 25])
def test_nodes_by_accuracy_are_the_most_probable_paths(nodes: int) -> None:
    random = Random(nodes)
    accuracies = [sorted((random.random() for _ in range(4)), reverse=True) for _ in range(3)]
    found = by_accuracy(accuracies, nodes, 3)
    products = {
        ranks: prod(accuracies[depth][rank] for depth, rank in enumerate(ranks))
        for depth in (1, 2, 3)
        for ranks in product(range(4), repeat=depth)
    }
    assert set(ranks_of(found)) == set(sorted(products, key=lambda ranks: -products[ranks])[:nodes])


def test_accuracies_limit_depth_and_width_and_noise_in_them_skips_no_rank() -> None:
    assert ranks_of(by_accuracy([[0.5, 0.1, 0.2]], 9, 3)) == [(0,), (1,), (2,)]
    assert by_accuracy(falling_accuracies(5), 63, 1).depth == 1
    assert len(by_accuracy(falling_accuracies(5), 63, 5).parents) == 63
    assert by_accuracy([[0.5, 0.0]], 9, 3).parents == (0,)
    with pytest.raises(ValueError, match="a template has nodes, a width and a depth"):
        by_accuracy(falling_accuracies(0), 63, 0)
