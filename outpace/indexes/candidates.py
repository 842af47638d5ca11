"""The draft tree that an index proposes after a context."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outpace.core.tree import Forest, Shape, TokenTree


class CandidateTree(NamedTuple):
    """Draft tokens of one row as a tree: parents before children, siblings by falling weight."""

    tokens: list[int]
    parents: list[int]  # index of the parent in `tokens`; -1: the root, the last token of the context
    # count or estimated probability of the path to each node; a child's is at most its parent's
    weights: list[float]
    matched: int  # number of tokens of the context's suffix that occurs in the index

    @property
    def expected_accepted(self) -> float:
        """Sum of the weights: the expected number of accepted tokens if they are path probabilities."""
        return sum(self.weights)


NO_CANDIDATES = CandidateTree([], [], [], 0)


@lru_cache
def parents_and_ranks(shape: Shape) -> NDArray[np.int32]:
    """(S, 2) parent node (0: the root) and rank among its siblings, for each node of a shape except the
    root."""
    ranks = {child: rank for siblings in shape.children for rank, child in enumerate(siblings)}
    rows = [(parent, ranks[node]) for node, parent in enumerate(shape.parents, 1)]
    return np.array(rows, np.int32).reshape(-1, 2)


def candidate_tree(roots: Tensor, found: Sequence[CandidateTree]) -> TokenTree:  # (B,) int64 on the host, B
    """The token tree with each row's candidates below its root; it has no claim, since no token was drawn
    from a distribution."""
    parents, tokens = [-1] * len(found), list[int]()
    for row, branches in enumerate(found):
        first = len(parents)
        parents += [first + parent if parent >= 0 else row for parent in branches.parents]
        tokens += branches.tokens
    if not tokens:
        return TokenTree.roots(roots)
    return TokenTree(torch.cat([roots, torch.tensor(tokens)]), Forest.of(parents, len(found)))
