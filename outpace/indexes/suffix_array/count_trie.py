"""The most frequent prefixes of many continuations, as a trie (He et al. 2024, REST)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree
from outpace.indexes.compiled_loops import loop

Ints = NDArray[np.int32]
TOKEN, PARENT, COUNT, DEPTH = range(4)  # columns of a node


def count_trie(continuations: Ints, num_nodes: int, matched: int = 0) -> CandidateTree:
    """The `num_nodes` most frequent prefixes of (num, length) tokens, -1 after the end of a continuation.

    Weights are counts. Of equal counts the shorter prefix is kept, then the one with the smaller tokens.
    """
    num, length = continuations.shape
    if not num or not length or num_nodes < 1:
        return NO_CANDIDATES
    rows = _in_lexical_order(np.ascontiguousarray(continuations, np.int32))
    nodes = np.empty((num * length, 4), np.int32)
    size = int(_count(rows, nodes))
    nodes = nodes[:size].astype(np.int64)
    # count, depth and index in one integer; no child sorts before its parent, so parents of kept nodes are
    # kept
    keys = ((num - nodes[:, COUNT]) << 40) | (nodes[:, DEPTH] << 32) | np.arange(size)
    if num_nodes < size:
        keys = np.partition(keys, num_nodes)[:num_nodes]
    best = np.sort(keys) & 0xFFFFFFFF
    new_index = np.full(size + 1, -1)  # the last entry is for parent -1
    new_index[best] = np.arange(len(best))
    tokens, parents, counts = nodes[best][:, [TOKEN, PARENT, COUNT]].T
    return CandidateTree(tokens.tolist(), new_index[parents].tolist(), counts.astype(float).tolist(), matched)


def _in_lexical_order(rows: Ints) -> Ints:
    """The rows sorted by their tokens; rows from one suffix array already are."""
    if _sorted(rows):
        return rows
    return rows[np.lexsort(rows.T[::-1])]


@loop
def _sorted(rows: Ints) -> bool:
    for row in range(1, len(rows)):
        for column in range(rows.shape[1]):
            if rows[row - 1, column] != rows[row, column]:
                if rows[row - 1, column] > rows[row, column]:
                    return False
                break
    return True


@loop
def _count(rows: Ints, nodes: Ints) -> int:
    """Fill (size, 4) with the distinct prefixes of sorted rows, in their order; parent -1 is the root."""
    size, path = 0, [-1] * rows.shape[1]  # the node at each depth of the previous row
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
