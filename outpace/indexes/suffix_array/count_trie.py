"""Trie of the most frequent prefixes of retrieved continuations (He et al. 2024, REST)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree
from outpace.indexes.compiled_loops import compiled_loop

Ints = NDArray[np.int32]
TOKEN, PARENT, COUNT, DEPTH = range(4)  # columns of a trie node; DEPTH 0: first token


def count_trie(continuations: Ints, num_nodes: int, matched: int = 0) -> CandidateTree:
    """Trie of the `num_nodes` most frequent prefixes of continuations; weights are counts.

    continuations: (num, length) tokens, -1 after the end of each; matched: copied to the result. Of prefixes
    with equal counts the shorter is kept, then the lexicographically smaller.
    """
    num, length = continuations.shape
    if not num or not length or num_nodes < 1:
        return NO_CANDIDATES
    rows = _in_lexical_order(np.ascontiguousarray(continuations, np.int32))
    nodes = np.empty((num * length, 4), np.int32)
    size = int(_count(rows, nodes))
    nodes = nodes[:size].astype(np.int64)
    # one sort key of falling count, depth and index: a parent sorts before its children, so the first
    # `num_nodes` nodes contain the parents of all of them
    keys = ((num - nodes[:, COUNT]) << 40) | (nodes[:, DEPTH] << 32) | np.arange(size)
    if num_nodes < size:
        keys = np.partition(keys, num_nodes)[:num_nodes]
    best = np.sort(keys) & 0xFFFFFFFF
    new_index = np.full(size + 1, -1)  # the last entry maps parent -1 (the root) to -1
    new_index[best] = np.arange(len(best))
    tokens, parents, counts = nodes[best][:, [TOKEN, PARENT, COUNT]].T
    return CandidateTree(tokens.tolist(), new_index[parents].tolist(), counts.astype(float).tolist(), matched)


def _in_lexical_order(rows: Ints) -> Ints:
    """The rows in lexicographic order; rows from a single chunk already are."""
    if _sorted(rows):
        return rows
    return rows[np.lexsort(rows.T[::-1])]


@compiled_loop
def _sorted(rows: Ints) -> bool:
    for row in range(1, len(rows)):
        for column in range(rows.shape[1]):
            if rows[row - 1, column] != rows[row, column]:
                if rows[row - 1, column] > rows[row, column]:
                    return False
                break
    return True


@compiled_loop
def _count(rows: Ints, nodes: Ints) -> int:
    """Fill `nodes` with one row per distinct prefix of the sorted rows, in their order; returns the number.

    Parent -1 is the root.
    """
    size, path = 0, [-1] * rows.shape[1]  # path: nodes of the continuation before
    for row in range(len(rows)):
        same, parent = row > 0, -1
        for column in range(rows.shape[1]):
            token = rows[row, column]
            if token < 0:
                break
            same = same and rows[row - 1, column] == token
            if not same:
                nodes[size, TOKEN], nodes[size, PARENT] = token, parent
                nodes[size, COUNT], nodes[size, DEPTH] = 0, column
                path[column] = size
                size += 1
            parent = path[column]
            nodes[parent, COUNT] += 1
    return size
