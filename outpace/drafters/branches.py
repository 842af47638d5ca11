"""Draft trees from what an index found: one piece of host data a row, put together into one tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outpace.core.context import Context
from outpace.core.contracts import Draft
from outpace.core.tree import Forest, TokenTree
from outpace.indexes.branches import Branches


def planted(ctx: Context, found: Sequence[Branches]) -> Draft:  # (B,)
    """The draft that hangs these branches below each row's root."""
    parents, tokens = [-1] * len(found), list[int]()
    for row, branches in enumerate(found):
        first = len(parents)
        parents += [row if parent < 0 else first + parent for parent in branches.parents]
        tokens += branches.tokens
    if not tokens:
        return Draft(TokenTree.roots(ctx.roots))
    return Draft(TokenTree(torch.cat([ctx.roots, torch.tensor(tokens)]), Forest.of(parents, len(found))))
