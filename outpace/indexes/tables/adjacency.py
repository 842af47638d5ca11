"""Adjacency matrix of Token Recycling (Luo et al. 2025): per token the most recent top-k next tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from outpace.core.tree import Shape
from outpace.indexes.candidates import CandidateTree, parents_and_ranks
from outpace.indexes.compiled_loops import Tokens, as_tokens, compiled_loop
from outpace.indexes.store import Arrays, in_range, require, typed

Ints = NDArray[np.int32]
UNKNOWN = -1


class AdjacencyTable:
    """(vocab, width) array: for each token the top next tokens of the target's last forward pass on it, most
    probable first; rows of tokens without an observation are -1."""

    kind = "adjacency"

    def __init__(self, vocab: int, width: int = 8) -> None:
        if vocab < 1 or width < 1:
            raise ValueError(
                f"an adjacency table of {vocab} tokens with {width} successors: give 1 or more of both"
            )
        self.table = np.full((vocab, width), UNKNOWN, np.int32)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"table": self.table}

    @property
    def metadata(self) -> dict[str, int]:
        return {"known": int((self.table[:, 0] != UNKNOWN).sum())}

    @property
    def max_token(self) -> int:
        return len(self.table) - 1

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    @classmethod
    def from_arrays(cls, arrays: Arrays, metadata: Mapping[str, int]) -> Self:
        (table,) = typed(arrays, table=(None, None))
        require(table.size > 0, in_range(table, UNKNOWN, len(table)))
        known = table != UNKNOWN
        require((known == known[:, :1]).all())  # a row has all its successors or none
        index = cls(1)
        index.table = table
        return index

    def update(self, tokens: Tokens, successors: Sequence[Sequence[int]] | NDArray[Any]) -> None:
        """Replace the rows of (N,) tokens by (N, width) next tokens, most probable first.

        If a token occurs twice, its last row is kept. Raises ValueError for wrong shapes or ids >= vocab.
        """
        read, rows = as_tokens(tokens), np.ascontiguousarray(successors, np.int32)
        if not len(read) and not len(rows):
            return
        vocab, width = self.table.shape
        if rows.shape != (len(read), width) or max(read.max(), rows.max()) >= vocab or rows.min() < 0:
            raise ValueError(
                f"{len(read)} tokens with rows {rows.shape}: "
                f"give {width} successors for each, of {vocab} tokens"
            )
        _replace(self.table, read, rows)

    def successors(self, token: int) -> list[int]:
        """The stored next tokens after a token, most probable first; empty if there is no observation."""
        row = self.table[token].tolist()
        return row if row[0] != UNKNOWN else []

    def draft(self, root: int, shape: Shape) -> CandidateTree:
        """Draft tree of fixed shape: the r-th child of a node with token t is the r-th successor of t.

        Nodes below a token without an observation are omitted. The weight of a node is
        1 / (1 + sum of ranks along its path). Raises ValueError for a root outside the vocabulary.
        """
        if not 0 <= root < len(self.table):
            raise ValueError(f"token {root} is not one of the table's {len(self.table)}")
        nodes = np.empty((len(shape.parents), 3), np.int32)
        size = int(_fill(self.table, root, parents_and_ranks(shape), nodes))
        tokens, parents, rank_sums = nodes[:size].T.tolist()
        return CandidateTree(tokens, parents, [1 / (1 + each) for each in rank_sums], 1 if size else 0)


@compiled_loop
def _replace(table: Ints, tokens: Ints, rows: Ints) -> None:
    for index in range(len(tokens)):
        for rank in range(table.shape[1]):
            table[tokens[index], rank] = rows[index, rank]


@compiled_loop
def _fill(table: Ints, root: int, shape: Ints, nodes: Ints) -> int:
    """Fill `nodes` (S, 3) with token, parent and sum of ranks of each drafted node; returns their number.

    shape: (S, 2) parent and rank of each node.
    """
    index_of, size = [0] * (len(shape) + 1), 0  # node of the shape -> row of `nodes`, -1: omitted
    index_of[0] = -1
    for node in range(len(shape)):
        above, rank = shape[node, 0], shape[node, 1]
        parent, token = index_of[above] + 0, -1
        if above == 0:
            token = table[root, rank] if rank < table.shape[1] else -1
        elif parent >= 0:
            token = table[nodes[parent, 0], rank] if rank < table.shape[1] else -1
        index_of[node + 1] = size if token >= 0 else -1
        if token >= 0:
            nodes[size, 0], nodes[size, 1] = token, parent
            nodes[size, 2] = rank + (nodes[parent, 2] if parent >= 0 else 0)
            size += 1
    return size
