"""What an index proposes: a tree of tokens below the last token of a context."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outpace.core.tree import Shape


class CandidateTree(NamedTuple):
    """Drafted tokens, parents before children, siblings by falling weight."""

    tokens: list[int]
    parents: list[int]  # index of the parent in `tokens`; -1: the last token of the context
    weights: list[
        float
    ]  # counts or estimated probabilities of the paths to the nodes; a child's is at most its parent's
    matched: int  # length of the context's suffix that was found in the index

    @property
    def expected_accepted(self) -> float:
        """Expected number of accepted tokens, if the weights are probabilities."""
        return sum(self.weights)


NO_CANDIDATES = CandidateTree([], [], [], 0)


@lru_cache
def parents_and_ranks(shape: Shape) -> NDArray[np.int32]:
    """(S, 2) for each node of a shape but the root: its parent (the root is 0) and its rank among its
    siblings."""
    ranks = {child: rank for siblings in shape.children for rank, child in enumerate(siblings)}
    rows = [(parent, ranks[node]) for node, parent in enumerate(shape.parents, 1)]
    return np.array(rows, np.int32).reshape(-1, 2)
