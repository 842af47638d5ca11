"""A tree search over trigrams: which continuations of two tokens gather the most weight (Liu et al. 2025, ADED)."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.candidates import NOTHING, Candidates
from outpace.indexes.compiled_loops import Tokens, loop
from outpace.indexes.tables.hash_map import find
from outpace.indexes.tables.trigrams import TrigramTable

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
# columns: of a node, and of its numbers
TOKEN, PARENT, FIRST, CHILDREN, DEPTH, VISITS = range(6)  # CHILDREN is -1 before it is known
VALUE, PRIOR, SUM = range(3)  # SUM: of weights on the path
GROWTH = 8.0  # visits after which exploration begins to grow


def search(
    table: TrigramTable,
    own: TrigramTable,
    context: Tokens,
    *,
    iterations: int,
    num_paths: int = 24,
    num_nodes: int = 64,
    depth: int = 4,
    most_depth: int = 5,
    explore: float = 32.0,
    cap: float = 3.0,
    seed: int = 0,
) -> Candidates:
    """The paths of up to `depth` tokens visited most often, each with its likeliest next token; weights are visits.

    Weights of both tables are added, up to `cap`. A visited node's value is 1 and the weights on a path through it,
    whose end is drawn in proportion to weights, from `seed` alone. Equal visits: what was met first.
    """
    if len(context) < 2 or num_nodes < 1 or depth < 1 or iterations < 1:
        return NOTHING
    width = table.tokens.shape[1]
    room = 1 + width * (iterations + 1)
    nodes, numbers = np.empty((room, 6), np.int32), np.empty((room, 3))
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
            np.empty(room, np.int32),
            int(context[-2]),
            int(context[-1]),
            iterations,
            num_paths,
            depth,
            most_depth,
            explore,
            cap,
            seed,
        )
    )
    if not size:
        return NOTHING
    tokens, parents, visits = draft[:size].T.tolist()
    return Candidates(tokens, parents, [float(each) for each in visits], 2)


@loop
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
    """Fill (2 width,) tokens and weights after two tokens in both tables, by falling weight; how many."""
    pair, size = (first << 32) | second, 0
    row = find(keys, values, pair)
    if row >= 0:
        for place in range(tokens.shape[1]):
            if tokens[row, place] < 0:
                break
            found[size], weight[size] = tokens[row, place], weights[row, place]
            size += 1
    known = size
    row = find(own_keys, own_values, pair)
    if row >= 0:
        for place in range(own_tokens.shape[1]):
            token, more = own_tokens[row, place] + 0, own_weights[row, place] + 0
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
        for index in range(1, size):  # both rows are sorted, so little is out of place
            token, more, at = found[index] + 0, weight[index] + 0, index
            while at > 0 and (weight[at - 1] < more or (weight[at - 1] == more and found[at - 1] > token)):
                found[at], weight[at] = found[at - 1], weight[at - 1]
                at -= 1
            found[at], weight[at] = token, more
    return min(size, tokens.shape[1])


@loop
def _best(nodes: Ints, numbers: Doubles, node: int, explore: float) -> int:
    """The child to visit next: an unvisited one, or that of the highest value with its chance to be better."""
    total = float(nodes[node, VISITS])
    bonus = (explore + log((total + GROWTH + 1) / GROWTH)) * sqrt(total)
    best, most = -1, -1.0
    for child in range(nodes[node, FIRST], nodes[node, FIRST] + nodes[node, CHILDREN]):
        visits = nodes[child, VISITS]
        if visits == 0:
            return child
        worth = numbers[child, VALUE] / visits + bonus * numbers[child, PRIOR] / (1 + visits)
        if worth > most:
            best, most = child, worth
    return best


@loop
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
    most_depth: int,
    explore: float,
    cap: float,
    seed: int,
) -> int:
    """Fill (size, 3) draft: token, parent and visits of each node."""
    nodes[0, TOKEN], nodes[0, PARENT], nodes[0, CHILDREN], nodes[0, DEPTH], nodes[0, VISITS] = (
        last,
        -1,
        -1,
        0,
        0,
    )
    numbers[0, VALUE], numbers[0, PRIOR], numbers[0, SUM] = 0.0, 1.0, 0.0
    size, state = 1, seed & 0xFFFFFFFF
    for _ in range(iterations):
        node = 0
        while nodes[node, CHILDREN] > 0:
            node = _best(nodes, numbers, node, explore)
        level, total = nodes[node, DEPTH] + 0, numbers[node, SUM] + 0.0
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
                for place in range(known):
                    nodes[size, TOKEN], nodes[size, PARENT] = found[place], node
                    nodes[size, CHILDREN], nodes[size, DEPTH], nodes[size, VISITS] = -1, level + 1, 0
                    numbers[size, VALUE], numbers[size, PRIOR] = 0.0, weight[place]
                    numbers[size, SUM] = total + weight[place]
                    size += 1
            if known == 0:
                break
            mass = 0.0
            for place in range(known):
                mass += weight[place]
            state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
            point, place = mass * (state / 4294967296.0), 0
            while place < known - 1 and point >= weight[place]:
                point -= weight[place]
                place += 1
            total += weight[place]
            above, token = token, found[place] + 0
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
        most_depth,
        cap,
    )


@loop
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
    most_depth: int,
    cap: float,
) -> int:
    """The nodes visited most, which come after their parents since those are met before, then their next tokens."""
    visited = 0
    for node in range(1, size):
        if nodes[node, VISITS] > 0:
            picked[visited] = node
            visited += 1
    drafted = min(num_paths, visited, len(draft))
    for place in range(drafted):
        best = place
        for other in range(place + 1, visited):
            if nodes[picked[other], VISITS] > nodes[picked[best], VISITS]:
                best = other
        node = picked[best] + 0
        for other in range(best, place, -1):  # the others stay in the order in which they were met
            picked[other] = picked[other - 1]
        picked[place] = node
        parent = nodes[node, PARENT] + 0
        draft[place, 0], draft[place, 2] = nodes[node, TOKEN], nodes[node, VISITS]
        draft[place, 1] = -1 if parent == 0 else -1 - nodes[parent, DEPTH]
        nodes[node, VISITS], nodes[node, DEPTH] = (
            -nodes[node, DEPTH],
            -1 - place,
        )  # from here on: depth, and place
    paths = drafted
    for place in range(paths):
        node = picked[place] + 0
        if drafted == len(draft) or -nodes[node, VISITS] >= most_depth:
            continue
        if nodes[node, CHILDREN] > 0:
            child = nodes[node, FIRST] + 0
            if nodes[child, DEPTH] < 0:
                continue  # drafted already
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
        draft[drafted, 1] = place
        drafted += 1
    return drafted
