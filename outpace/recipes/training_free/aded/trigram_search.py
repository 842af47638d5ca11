"""Monte Carlo tree search over a trigram table for a draft tree of large weight (Liu et al. 2025, ADED)."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree
from outpace.indexes.compiled_loops import Tokens, compiled_loop
from outpace.indexes.hash_map import find
from outpace.recipes.training_free.aded.trigram_table import TrigramTable

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
# integer columns of a node; FIRST: row of its first child, CHILDREN: number of children (-1: not expanded)
TOKEN, PARENT, FIRST, CHILDREN, DEPTH, VISITS = range(6)
# float columns of a node: sum of values, weight of its trigram, sum of the weights along its path
VALUE, PRIOR, PATH_WEIGHT = range(3)
EXPLORATION_BASE = 8.0  # c_base of PUCT: number of visits after which the exploration term begins to grow


def search(
    table: TrigramTable,
    own: TrigramTable,
    context: Tokens,
    *,
    iterations: int,
    num_paths: int = 24,
    num_nodes: int = 64,
    depth: int = 4,
    max_depth: int = 5,
    explore: float = 32.0,
    cap: float = 3.0,
    seed: int = 0,
) -> CandidateTree:
    """Draft tree of the `num_paths` most visited nodes, each extended by its next token of largest weight.

    The weights of the result are visit counts; of equally visited nodes those created first are kept. Raises
    ValueError for tables of different widths.

    Args:
        table: the table shared by all requests.
        own: the table of this request, of equal width; the weights of both are added.
        context: the tokens of the request so far; the last two select the first trigrams.
        iterations: number of simulations. Each adds 1 + the sum of the weights along its path to the values
            of the path's nodes; below the expanded node tokens are sampled in proportion to the weights.
        num_paths: maximum number of visited nodes in the result.
        num_nodes: maximum number of nodes in the result, next tokens included.
        depth: maximum depth of the search.
        max_depth: maximum depth of the result, next tokens included.
        explore: factor of the exploration term of PUCT.
        cap: maximum of the sum of the weights of both tables.
        seed: seed of the sampled paths; the search has no other randomness.
    """
    if len(context) < 2 or num_nodes < 1 or depth < 1 or iterations < 1:
        return NO_CANDIDATES
    width = table.tokens.shape[1]
    if own.tokens.shape[1] != width:
        raise ValueError(f"tables of width {width} and {own.tokens.shape[1]}: give two of equal width")
    num_nodes_searched = 1 + width * (iterations + 1)
    nodes, numbers = np.empty((num_nodes_searched, 6), np.int32), np.empty((num_nodes_searched, 3))
    draft = np.empty((num_nodes, 3), np.int32)
    size = int(
        _search(
            *table.map,
            table.tokens,
            table.weights,
            *own.map,
            own.tokens,
            own.weights,
            nodes,
            numbers,
            np.empty(2 * width, np.int32),
            np.empty(2 * width, np.float32),
            draft,
            np.empty(num_nodes_searched, np.int32),
            int(context[-2]),
            int(context[-1]),
            iterations,
            num_paths,
            depth,
            max_depth,
            explore,
            cap,
            seed,
        )
    )
    if not size:
        return NO_CANDIDATES
    tokens, parents, visits = draft[:size].T.tolist()
    return CandidateTree(tokens, parents, [float(each) for each in visits], 2)


@compiled_loop
def _successors(
    keys: Longs,
    values: Ints,
    tokens: Ints,
    weights: Floats,
    own_keys: Longs,
    own_values: Ints,
    own_tokens: Ints,
    own_weights: Floats,
    first: int,
    second: int,
    cap: float,
    found: Ints,
    weight: Floats,
) -> int:
    """Fill `found` and `weight` (2 width,) with the next tokens after the pair (first, second) and the sums
    of their weights in both tables, by falling weight; returns their number, at most width."""
    pair, size = (first << 32) | second, 0
    row = find(keys, values, pair)
    if row >= 0:
        for rank in range(tokens.shape[1]):
            if tokens[row, rank] < 0:
                break
            found[size], weight[size] = tokens[row, rank], weights[row, rank]
            size += 1
    known = size
    row = find(own_keys, own_values, pair)
    if row >= 0:
        for rank in range(own_tokens.shape[1]):
            token, more = own_tokens[row, rank] + 0, own_weights[row, rank] + 0
            if token < 0:
                break
            at = 0
            while at < known and found[at] != token:
                at += 1
            if at < known:
                weight[at] = min(weight[at] + more, cap)
            else:
                found[size], weight[size] = token, more
                size += 1
        for index in range(1, size):  # insertion sort: two sorted rows are almost in order
            token, more, at = found[index] + 0, weight[index] + 0, index
            while at > 0 and (weight[at - 1] < more or (weight[at - 1] == more and found[at - 1] > token)):
                found[at], weight[at] = found[at - 1], weight[at - 1]
                at -= 1
            found[at], weight[at] = token, more
    return min(size, tokens.shape[1])


@compiled_loop
def _best_child(nodes: Ints, numbers: Doubles, node: int, explore: float) -> int:
    """The child to visit next: the first unvisited one, else the one with the highest PUCT score."""
    total = float(nodes[node, VISITS])
    bonus = (explore + log((total + EXPLORATION_BASE + 1) / EXPLORATION_BASE)) * sqrt(total)
    best, best_score = nodes[node, FIRST] + 0, -1.0
    for child in range(nodes[node, FIRST], nodes[node, FIRST] + nodes[node, CHILDREN]):
        visits = nodes[child, VISITS]
        if visits == 0:
            return child
        score = numbers[child, VALUE] / visits + bonus * numbers[child, PRIOR] / (1 + visits)
        if score > best_score:
            best, best_score = child, score
    return best


@compiled_loop
def _search(
    keys: Longs,
    values: Ints,
    tokens: Ints,
    weights: Floats,
    own_keys: Longs,
    own_values: Ints,
    own_tokens: Ints,
    own_weights: Floats,
    nodes: Ints,
    numbers: Doubles,
    found: Ints,
    weight: Floats,
    draft: Ints,
    picked: Ints,
    before: int,
    last: int,
    iterations: int,
    num_paths: int,
    depth: int,
    max_depth: int,
    explore: float,
    cap: float,
    seed: int,
) -> int:
    """Run the search and fill `draft` (num_nodes, 3: token, parent, visits); returns its number of nodes."""
    nodes[0, TOKEN], nodes[0, PARENT], nodes[0, CHILDREN] = last, -1, -1
    nodes[0, DEPTH], nodes[0, VISITS] = 0, 0
    numbers[0, VALUE], numbers[0, PRIOR], numbers[0, PATH_WEIGHT] = 0.0, 1.0, 0.0
    size, state = 1, seed & 0xFFFFFFFF
    for _ in range(iterations):
        node = 0
        while nodes[node, CHILDREN] > 0:
            node = _best_child(nodes, numbers, node, explore)
        level, total = nodes[node, DEPTH] + 0, numbers[node, PATH_WEIGHT] + 0.0
        token, above = nodes[node, TOKEN] + 0, before + 0
        if node > 0:
            above = nodes[nodes[node, PARENT], TOKEN] + 0
        while level < depth:
            known = _successors(
                keys,
                values,
                tokens,
                weights,
                own_keys,
                own_values,
                own_tokens,
                own_weights,
                above,
                token,
                cap,
                found,
                weight,
            )
            if level == nodes[node, DEPTH]:
                nodes[node, FIRST], nodes[node, CHILDREN] = size, known
                for rank in range(known):
                    nodes[size, TOKEN], nodes[size, PARENT] = found[rank], node
                    nodes[size, CHILDREN], nodes[size, DEPTH], nodes[size, VISITS] = -1, level + 1, 0
                    numbers[size, VALUE], numbers[size, PRIOR] = 0.0, weight[rank]
                    numbers[size, PATH_WEIGHT] = total + weight[rank]
                    size += 1
            if known == 0:
                break
            mass = 0.0
            for rank in range(known):
                mass += weight[rank]
            state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
            point, rank = mass * (state / 4294967296.0), 0
            while rank < known - 1 and point >= weight[rank]:
                point -= weight[rank]
                rank += 1
            total += weight[rank]
            above, token = token, found[rank] + 0
            level += 1
        if nodes[0, CHILDREN] == 0:
            return 0
        while node >= 0:
            nodes[node, VISITS] += 1
            numbers[node, VALUE] += 1.0 + total
            node = nodes[node, PARENT] + 0
    return _collect(
        keys,
        values,
        tokens,
        weights,
        own_keys,
        own_values,
        own_tokens,
        own_weights,
        nodes,
        size,
        found,
        weight,
        draft,
        picked,
        num_paths,
        max_depth,
        cap,
    )


@compiled_loop
def _collect(
    keys: Longs,
    values: Ints,
    tokens: Ints,
    weights: Floats,
    own_keys: Longs,
    own_values: Ints,
    own_tokens: Ints,
    own_weights: Floats,
    nodes: Ints,
    size: int,
    found: Ints,
    weight: Floats,
    draft: Ints,
    picked: Ints,
    num_paths: int,
    max_depth: int,
    cap: float,
) -> int:
    """Fill `draft` with the most visited nodes, then with the next token of largest weight of each; returns
    its number of nodes.

    A parent has at least as many visits as its children and was created before them, so it precedes them.
    """
    visited = 0
    for node in range(1, size):
        if nodes[node, VISITS] > 0:
            picked[visited] = node
            visited += 1
    drafted = min(num_paths, visited, len(draft))
    for rank in range(drafted):
        best = rank
        for other in range(rank + 1, visited):
            if nodes[picked[other], VISITS] > nodes[picked[best], VISITS]:
                best = other
        node = picked[best] + 0
        for other in range(best, rank, -1):  # the others stay in order of creation
            picked[other] = picked[other - 1]
        picked[rank] = node
        parent = nodes[node, PARENT] + 0
        draft[rank, 0], draft[rank, 2] = nodes[node, TOKEN], nodes[node, VISITS]
        draft[rank, 1] = -1 if parent == 0 else -1 - nodes[parent, DEPTH]
        # for drafted nodes two columns are overwritten: VISITS by -depth, DEPTH by -1 - index in the draft
        nodes[node, VISITS], nodes[node, DEPTH] = -nodes[node, DEPTH], -1 - rank
    paths = drafted
    for rank in range(paths):
        node = picked[rank] + 0
        if drafted == len(draft) or -nodes[node, VISITS] >= max_depth:
            continue
        if nodes[node, CHILDREN] > 0:
            child = nodes[node, FIRST] + 0
            if nodes[child, DEPTH] < 0:
                continue  # the child is in the draft already
            draft[drafted, 0], draft[drafted, 2] = nodes[child, TOKEN], nodes[child, VISITS]
        else:
            parent = nodes[node, PARENT] + 0
            known = _successors(
                keys,
                values,
                tokens,
                weights,
                own_keys,
                own_values,
                own_tokens,
                own_weights,
                nodes[parent, TOKEN] + 0,
                nodes[node, TOKEN] + 0,
                cap,
                found,
                weight,
            )
            if known == 0:
                continue
            draft[drafted, 0], draft[drafted, 2] = found[0], 0
        draft[drafted, 1] = rank
        drafted += 1
    return drafted
