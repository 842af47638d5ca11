"""Draft trees from index lookups: the candidates of all rows, kept on the host, joined in one token tree.

Letters: B rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.tree import Forest, TokenTree
from outpace.indexes.candidates import CandidateTree


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
