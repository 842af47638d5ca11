"""For each token the likeliest next ones when the target last read it (Luo et al. 2025, Token Recycling)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from outpace.core.tree import Shape
from outpace.indexes.candidates import Candidates, template
from outpace.indexes.compiled_loops import Tokens, as_tokens, loop
from outpace.indexes.store import damaged, expect

Ints = NDArray[np.int32]
UNKNOWN = -1


class AdjacencyTable:
    """(vocab, width) int32, -1 where nothing is known: of one size from the start."""

    kind = "adjacency"

    def __init__(self, vocab: int, width: int = 8) -> None:
        if vocab < 1 or width < 1:
            raise ValueError("an adjacency table has at least one token and one place for what follows it")
        self.table = np.full((vocab, width), UNKNOWN, np.int32)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"table": self.table}

    @property
    def facts(self) -> dict[str, int]:
        return {"known": int((self.table[:, 0] != UNKNOWN).sum())}

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, int]) -> Self:
        (table,) = expect(arrays, table=(None, None))
        if not table.size or table.max() >= len(table) or table.min() < UNKNOWN:
            raise damaged()
        found = cls(1)
        found.table = table
        return found

    def update(self, tokens: Tokens, successors: Sequence[Sequence[int]] | NDArray[Any]) -> None:
        """Replace rows: (N,) tokens and (N, width) what may follow, likeliest first. The last of equal tokens wins."""
        read, rows = as_tokens(tokens), np.ascontiguousarray(successors, np.int32)
        if not len(read) and not len(rows):
            return
        vocab, width = self.table.shape
        if rows.shape != (len(read), width) or max(read.max(), rows.max()) >= vocab or rows.min() < 0:
            raise ValueError(
                f"{len(read)} tokens with rows {rows.shape}: give {width} successors for each, of {vocab} tokens"
            )
        _replace(self.table, read, rows)

    def successors(self, token: int) -> list[int]:
        """Likeliest first; empty if the token was never read."""
        row = self.table[token].tolist()
        return row if row[0] != UNKNOWN else []

    def draft(self, root: int, shape: Shape) -> Candidates:
        """The nodes of a fixed tree: the r-th child of a node with token t is the r-th successor of t.

        What is below an unknown token is left out. A weight is 1 / (1 + sum of ranks along the path).
        """
        if not 0 <= root < len(self.table):
            raise ValueError(f"token {root} is not one of the table's {len(self.table)}")
        nodes = np.empty((len(shape.parents), 3), np.int32)
        size = int(_fill(self.table, root, template(shape), nodes))
        tokens, parents, sums = nodes[:size].T.tolist()
        return Candidates(tokens, parents, [1 / (1 + each) for each in sums], 1 if size else 0)


@loop
def _replace(table: Ints, tokens: Ints, rows: Ints) -> None:
    for index in range(len(tokens)):
        for rank in range(table.shape[1]):
            table[tokens[index], rank] = rows[index, rank]


@loop
def _fill(table: Ints, root: int, template: Ints, nodes: Ints) -> int:
    """Fill (S, 3) tokens, parents and sums of ranks with the nodes that are known; how many there are."""
    kept, size = [0] * (len(template) + 1), 0  # where a node of the template stands, -1: left out
    kept[0] = -1
    for node in range(len(template)):
        above, rank = template[node, 0], template[node, 1]
        parent, token = kept[above] + 0, -1
        if above == 0:
            token = table[root, rank] if rank < table.shape[1] else -1
        elif parent >= 0:
            token = table[nodes[parent, 0], rank] if rank < table.shape[1] else -1
        kept[node + 1] = size if token >= 0 else -1
        if token >= 0:
            nodes[size, 0], nodes[size, 1] = token, parent
            nodes[size, 2] = rank + (nodes[parent, 2] if parent >= 0 else 0)
            size += 1
    return size
