"""Rank templates: fixed trees whose nodes stand for a drafter's first guess below their parent, its second,
and so on.

The ranks (r_1, ..., r_d) name a node: of the root's guesses the r_1-th, of the r_2-th below that, counted
from 0. A template holds with a node its parent and its elder siblings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import prod

from outpace.core.contracts import Step
from outpace.core.tree import Shape

Ranks = tuple[int, ...]
Weight = Callable[
    [Ranks], float
]  # what a node is worth beside others: not more than its parent or an elder sibling


def rank_template(nodes: int, levels: Sequence[int] = (), *, width: int, depth: int = 6) -> Shape:
    """A template that leans to low ranks: of `nodes` nodes, or with exactly so many at each of `levels`."""
    if levels:
        return by_level(levels, leaning, width=width)
    return heaviest(nodes, leaning, width=width, depth=depth)


def leaning(ranks: Ranks) -> float:
    """A weight that spreads the 80 heaviest nodes over depths nearly as Luo et al. (2025) do: 8, 21, 25, 19,
    6, 1."""
    return prod(0.8 * (rank + 1) ** -0.5 for rank in ranks)


def fitted(accepted: Mapping[Ranks, int], nodes: int) -> Shape:
    """The template of the nodes accepted most often; smaller where no more were ever accepted."""
    return heaviest(nodes, lambda ranks: accepted.get(ranks, 0), width=1 << 16, depth=1 << 16)


def accepted_ranks(steps: Iterable[Step]) -> Counter[Ranks]:
    """How often each node of a template was accepted in these steps, whose siblings stand in the order of
    ranks."""
    counts: Counter[Ranks] = Counter()
    for step in steps:
        forest = step.draft.tree.forest
        for leaf in step.verdict.leaf if step.scores.logits is not None else ():
            path, ranks = forest.path(leaf), ()
            for parent, node in zip(path, path[1:], strict=False):
                ranks = (*ranks, forest.children[parent].index(node))
                counts[ranks] += 1
    return counts


def heaviest(nodes: int, weigh: Weight, *, width: int, depth: int) -> Shape:
    """The template grown by the heaviest node that fits, until there are so many or the rest weighs
    nothing."""
    if nodes < 0 or width < 1 or depth < 1:
        raise ValueError(f"a template has nodes, a width and a depth, not {nodes}, {width} and {depth}")
    found: list[Ranks] = []
    heap: list[tuple[float, int, Ranks]] = [(-weigh((0,)), 1, (0,))]
    while heap and len(found) < nodes:
        weight, level, ranks = heappop(heap)
        if weight >= 0:
            break
        found.append(ranks)
        if ranks[-1] + 1 < width:
            sibling = (*ranks[:-1], ranks[-1] + 1)
            heappush(heap, (-weigh(sibling), level, sibling))
        if level < depth:
            heappush(heap, (-weigh((*ranks, 0)), level + 1, (*ranks, 0)))
    return shape_of(found)


def by_level(levels: Sequence[int], weigh: Weight, *, width: int) -> Shape:
    """The heaviest nodes below those of the level above, so many at each level; fewer where there is no
    room."""
    if min(levels) < 1:
        raise ValueError(f"a template has at least one node at every level, not {tuple(levels)}")
    found: list[Ranks] = []
    above: list[Ranks] = [()]
    for count in levels:
        heap: list[tuple[float, Ranks]] = [(-weigh((*ranks, 0)), (*ranks, 0)) for ranks in above]
        heapify(heap)
        above = []
        while heap and len(above) < count:
            _, ranks = heappop(heap)
            above.append(ranks)
            if ranks[-1] + 1 < width:
                sibling = (*ranks[:-1], ranks[-1] + 1)
                heappush(heap, (-weigh(sibling), sibling))
        found += above
    return shape_of(found)


def shape_of(template: Iterable[Ranks]) -> Shape:
    """These nodes level by level, siblings by rank."""
    order = sorted(template, key=lambda ranks: (len(ranks), ranks))
    place = {ranks: node for node, ranks in enumerate([(), *order])}
    return Shape(tuple(place[ranks[:-1]] for ranks in order))


@lru_cache
def cut(shape: Shape, depth: int) -> Shape:
    """The levels of a shape down to this depth."""
    depths = [0]
    for parent in shape.parents:
        depths.append(depths[parent] + 1)
    return Shape(shape.parents[: sum(0 < each <= depth for each in depths)])
