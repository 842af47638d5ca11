"""The draft tree with the highest speedup, from the acceptance rate of each rank and the cost of a forward.

The expected number of accepted tokens of a tree is the sum, over its nodes, of the probability that the whole
path to the node is accepted (Chen et al. 2024, Sequoia). With an acceptance rate per candidate rank that
falls with the rank, the best tree of n nodes is the n nodes of the highest such probability.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from outpace.core.tree import Shape


@dataclass(frozen=True)
class Choice:
    """A tree shape with its expected step length and speedup."""

    shape: Shape
    length: float  # expected tokens per step, the bonus token included
    speedup: float  # expected ratio of tokens per second to plain decoding (one token a forward)


def best_shape(
    rates: Sequence[float],  # acceptance rate of the candidate of each rank, the most probable first
    cost: Callable[[int], float],  # number of tokens -> seconds of a target forward over them
    draft: float,  # seconds of one draft model forward; a tree takes one per level
    *,
    nodes: int = 64,
    depth: int = 16,
) -> Choice:
    """The tree of at most `nodes` nodes and `depth` levels with the most expected tokens per second; a tree
    without nodes where plain decoding is faster."""
    # measured rates of rare ranks are noisy: cap each by those before it, so that rates never increase
    rates = list(accumulate(rates, min))
    best = Choice(Shape(()), 1.0, 1.0)
    # candidate nodes by falling path probability: (-probability, depth, parent, rank); a node's first child
    # and next sibling are pushed once it has been chosen
    heap: list[tuple[float, int, int, int]] = [(-rates[0], 1, 0, 0)] if rates and depth else []
    chosen: list[tuple[int, int]] = []  # (depth, parent) in the order of choice, the root being node 0
    path_probs, length = [1.0], 1.0
    while heap and len(chosen) < nodes:
        path_prob, level, parent, rank = heapq.heappop(heap)
        if path_prob == 0:
            break
        chosen.append((level, parent))
        path_probs.append(-path_prob)
        length -= path_prob
        if level < depth:
            heapq.heappush(heap, (path_prob * rates[0], level + 1, len(chosen), 0))
        if rank + 1 < len(rates):
            heapq.heappush(heap, (-path_probs[parent] * rates[rank + 1], level, parent, rank + 1))
        levels = max(level for level, _ in chosen)
        speedup = length * cost(1) / (cost(len(chosen) + 1) + levels * draft)
        if speedup > best.speedup:
            best = Choice(_in_order(chosen), length, speedup)
    return best


def _in_order(chosen: Sequence[tuple[int, int]]) -> Shape:
    """The chosen nodes (depth, parent) as a shape, sorted by depth; siblings stay in order of rank."""
    order = sorted(range(1, len(chosen) + 1), key=lambda node: (chosen[node - 1][0], node))
    index_of = {0: 0} | {node: index for index, node in enumerate(order, 1)}
    return Shape(tuple(index_of[chosen[node - 1][1]] for node in order))
