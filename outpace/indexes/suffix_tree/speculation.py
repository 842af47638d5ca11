"""Drafts from a counted suffix tree (Oliaro et al. 2025): the best path or tree over all match lengths."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.compiled_loops import loop
from outpace.indexes.suffix_tree.kernels import Ints, Longs, locate, token_at
from outpace.indexes.suffix_tree.siblings import CHILD, COUNT, LENGTH, NEXT, PARENT


@loop
def speculate(
    nodes: Ints,
    keys: Longs,
    values: Ints,
    slots: Longs,
    text: Ints,
    context: Ints,
    factor: float,
    offset: float,
    floor: float,
    tree: bool,
    unfollowed: int,
    draft: Ints,
    weights: NDArray[np.float64],
):  # -> (int, int, int)
    """Fill one half of draft (2 * most, 2), tokens and parents, and weights: its first row, how many, and p."""
    most = len(weights) // 2
    first, size, matched, best = 0, 0, 0, 0.0
    for length in range(1, len(context) + 1):
        node, taken = locate(nodes, keys, values, slots, text, context, len(context) - length)
        if node < 0 or (taken == nodes[node, LENGTH] and nodes[node, CHILD] < 0):
            break  # what nothing followed is not followed by anything after a longer match
        budget = min(most, int(factor * length + offset))
        other = most - first
        reach = nodes[node, COUNT] / (nodes[node, COUNT] + unfollowed)
        if reach < floor:
            continue
        new, score = _draft(
            nodes, slots, text, node, taken, reach, budget, floor, tree, draft, weights, other
        )
        if new > 0 and score >= best:
            first, size, matched, best = other, new, length, score
    return first, size, matched


@loop
def _draft(
    nodes: Ints,
    slots: Longs,
    text: Ints,
    node: int,
    taken: int,
    reach: float,
    most: int,
    floor: float,
    tree: bool,
    draft: Ints,
    weights: NDArray[np.float64],
    first: int,
):  # -> (int, float)
    """The nodes of the largest weights below a place on an edge, from row `first` on: how many, and their sum.

    Without `tree` only eldest children.
    """
    # (-weight, when it was met, node, offset on its edge, parent)
    heap = [(0.0, 0, 0, 0, 0)]
    heap.pop()
    size, met, parent, weight, score = 0, 0, -1, reach, 0.0
    while True:
        # what comes next on this path: a further token of the edge, or the eldest child
        if taken < nodes[node, LENGTH]:
            heappush(heap, (-weight, met, node, taken, parent))
        elif nodes[node, CHILD] >= 0:
            child = nodes[node, CHILD] + 0
            share = weight * (nodes[child, COUNT] / nodes[node, COUNT])
            if share >= floor:
                heappush(heap, (-share, met, child, 0, parent))
        met += 1
        if len(heap) == 0 or size >= most:
            return size, score
        weight, _, node, taken, parent = heappop(heap)
        weight = -weight
        draft[first + size, 0], draft[first + size, 1] = token_at(nodes, slots, text, node, taken), parent
        weights[first + size] = weight
        score += weight
        sibling = nodes[node, NEXT] + 0
        if tree and taken == 0 and sibling >= 0:
            above = weights[first + parent] if parent >= 0 else reach
            share = above * (nodes[sibling, COUNT] / nodes[nodes[node, PARENT], COUNT])
            if share >= floor:
                heappush(heap, (-share, met, sibling, 0, parent))
                met += 1
        parent, taken = size + 0, taken + 1
        size += 1
