"""Which tree to draft: from how often each candidate is accepted and what a forward of so many tokens costs.

The expected number of accepted tokens of a tree is the sum, over its nodes, of the chance that the whole path
to the node is accepted (Chen et al. 2024, Sequoia). With a chance per candidate rank that falls with the
rank, the best tree of n nodes is the n nodes of the largest such chance.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from outpace.core.tree import Shape


@dataclass(frozen=True)
class Choice:
    """A tree and what is expected of it."""

    shape: Shape
    length: float  # tokens a step, the bonus included
    speedup: float  # over one token a forward, in time


def best_shape(
    rates: Sequence[float],  # chance that the candidate of each rank is accepted
    cost: Callable[[int], float],  # seconds of a target forward over so many tokens
    draft: float,  # seconds of one drafter forward
    *,
    nodes: int = 64,
    depth: int = 16,
) -> Choice:
    """The tree with the most tokens per second; a tree without nodes where drafting does not pay."""
    rates = list(
        accumulate(rates, min)
    )  # rare ranks are noisy: a later candidate counts no better than an earlier one
    best = Choice(Shape(()), 1.0, 1.0)
    # candidates by falling chance: (-chance, depth, parent, rank); a node's next sibling and first child come
    # after it
    heap: list[tuple[float, int, int, int]] = [(-rates[0], 1, 0, 0)] if rates and depth else []
    chosen: list[tuple[int, int]] = []  # (depth, parent) in the order of choice, the root being node 0
    chances, length = [1.0], 1.0
    while heap and len(chosen) < nodes:
        chance, level, parent, rank = heapq.heappop(heap)
        if chance == 0:
            break
        chosen.append((level, parent))
        chances.append(-chance)
        length -= chance
        if level < depth:
            heapq.heappush(heap, (chance * rates[0], level + 1, len(chosen), 0))
        if rank + 1 < len(rates):
            heapq.heappush(heap, (-chances[parent] * rates[rank + 1], level, parent, rank + 1))
        levels = max(level for level, _ in chosen)
        speedup = length * cost(1) / (cost(len(chosen) + 1) + levels * draft)
        if speedup > best.speedup:
            best = Choice(_in_order(chosen), length, speedup)
    return best


def _in_order(chosen: Sequence[tuple[int, int]]) -> Shape:
    """The chosen nodes as a shape: in growing order of depth, siblings by rank."""
    order = sorted(range(1, len(chosen) + 1), key=lambda node: (chosen[node - 1][0], node))
    place = {0: 0} | {node: index for index, node in enumerate(order, 1)}
    return Shape(tuple(place[chosen[node - 1][1]] for node in order))
