"""Rank templates: fixed trees whose nodes stand for ranks, such as the most probable token after the parent
or the second most probable.

A node is named by ranks (r_1, ..., r_d), counted from 0: the candidate of rank r_1 after the root, below it
the candidate of rank r_2, and so on. With a node a template contains its parent and its siblings of lower
rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import prod

from outpace.core.contracts import Step
from outpace.core.tree import Shape

TOKEN_RECYCLING_LEVELS = (8, 21, 25, 15, 8, 3)  # nodes per depth of the tree of Luo et al. (2025)
Ranks = tuple[int, ...]
# weight of a node: at most that of its parent and of its siblings of lower rank
Weight = Callable[[Ranks], float]


def rank_template(nodes: int, levels: Sequence[int] = (), *, width: int, depth: int = 6) -> Shape:
    """A template weighted towards low ranks, at most `width` children per node: `nodes` nodes of at most
    `depth` levels, or with `levels` that many nodes at each depth."""
    if levels:
        return by_level(levels, leaning, width=width)
    return heaviest(nodes, leaning, width=width, depth=depth)


def leaning(ranks: Ranks) -> float:
    """Weight of a node under which the 80 heaviest nodes number 8, 21, 25, 19, 6, 1 at depths 1 to 6, nearly
    as in `TOKEN_RECYCLING_LEVELS`."""
    return prod(0.8 * (rank + 1) ** -0.5 for rank in ranks)


def fitted(accepted: Mapping[Ranks, int], nodes: int) -> Shape:
    """The template of the `nodes` nodes with the highest acceptance counts; nodes that were never accepted
    are left out."""
    return heaviest(nodes, lambda ranks: accepted.get(ranks, 0), width=1 << 16, depth=1 << 16)


def falling_accuracies(depth: int) -> list[list[float]]:
    """Assumed accuracies for `by_accuracy`, for drafters whose accuracies were not measured: for each depth
    and each of ten ranks the probability that the drafter's candidate of this rank is the right token. They
    fall with rank and depth; a tree of 63 nodes then has 10, 31, 17 and 5 nodes at depths 1 to 4."""
    return [[0.5 * 0.8**level * (rank + 1) ** -1.6 for rank in range(10)] for level in range(depth)]


def by_accuracy(accuracies: Sequence[Sequence[float]], nodes: int, depth: int) -> Shape:
    """The template of the `nodes` nodes that are most probably right, of at most `depth` levels, given the
    share of texts in which the candidate of rank r at depth d + 1 is right, `accuracies[d][r]`. Depths count
    as independent, and a rank measured above a lower one counts as equal to it."""
    falling = [list(accumulate(at_depth, min)) for at_depth in accuracies]

    def weigh(ranks: Ranks) -> float:
        if len(ranks) > len(falling):
            return 0.0
        return prod(
            at_depth[rank] if rank < len(at_depth) else 0.0
            for rank, at_depth in zip(ranks, falling, strict=False)
        )

    return heaviest(nodes, weigh, width=max(map(len, falling), default=0), depth=depth)


def accepted_ranks(steps: Iterable[Step]) -> Counter[Ranks]:
    """Number of times that each template node was accepted in these steps; siblings of their trees must be in
    order of rank."""
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
    """The template of the `nodes` heaviest nodes of positive weight, with at most `width` children per node
    and `depth` levels. ValueError for sizes that are too small."""
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
    """The template of the `levels[d]` heaviest nodes at each depth d + 1 whose parents are in it, at most
    `width` children per node; fewer nodes where these limits leave fewer. ValueError for a level without
    nodes."""
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
    """The shape of these nodes, in order of depth, siblings by rank."""
    order = sorted(template, key=lambda ranks: (len(ranks), ranks))
    node_of = {ranks: node for node, ranks in enumerate([(), *order])}
    return Shape(tuple(node_of[ranks[:-1]] for ranks in order))


@lru_cache
def cut(shape: Shape, depth: int) -> Shape:
    """The shape without its nodes deeper than `depth`."""
    depths = [0]
    for parent in shape.parents:
        depths.append(depths[parent] + 1)
    return Shape(shape.parents[: sum(0 < each <= depth for each in depths)])
