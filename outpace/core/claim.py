"""Claims: what verification may assume about how draft tokens were made.

A drafter's law q is a claim, not a hint. A token with a true claim may be accepted generously; a token without one is
always verified exactly, by matching; a token with a false claim biases the output. Claims survive growing a tree,
never choosing among what was drawn: dropping, re-ordering or re-ranking drawn tokens voids the claim.

Letters: N nodes, M rows of q, K columns of q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class Claim:
    """Base of claims. A verifier names the kinds it understands; the engine never looks inside."""


@dataclass(frozen=True, eq=False, slots=True)
class Drawn(Claim):
    """Tokens drawn from known laws, in the order in which siblings stand."""

    q: Tensor  # (M, K) at least float32, rows sum to 1, after temperature and truncation
    row: tuple[int, ...]  # (N,) row of q that node i itself was drawn from; -1: chosen, not drawn
    parent_row: tuple[int, ...]  # (N,) row of q below node i, also where no child was kept; -1: none
    replace: tuple[bool, ...]  # (M,) siblings of this row drawn independently, or each without the earlier ones
    ids: Tensor | None = None  # (M, K) int64 token of each column; None: column k is token k and K is the vocabulary

    def column(self, row: int, token: int) -> int:
        """Column of q that stands for this token; -1 where the row cannot draw it."""
        if self.ids is None:
            return token
        found = (self.ids[row] == token).nonzero()
        return int(found[0]) if len(found) else -1


def merge_claims(one: Claim | None, one_size: int, other: Claim | None, other_size: int, roots: int) -> Claim | None:
    """The claim of two merged trees of these sizes: the other's nodes follow, without its roots."""
    if one is None and other is None:
        return None
    for claim in (one, other):
        if not isinstance(claim, Drawn | None):
            raise TypeError(f"trees that claim {type(claim).__name__} cannot be merged")
    whole = {claim.ids is None for claim in (one, other) if isinstance(claim, Drawn)}
    if len(whole) == 2:
        raise TypeError("a law over the whole vocabulary and one over listed tokens cannot be merged")
    row, parent_row, replace, q, listed = [], [], [], [], []
    for claim, size, skip in ((one, one_size, 0), (other, other_size, roots)):
        if claim is None:
            row += [-1] * (size - skip)
            parent_row += [-1] * (size - skip)
            continue
        assert isinstance(claim, Drawn)
        first = len(replace)
        row += [index + first if index >= 0 else -1 for index in claim.row[skip:]]
        parent_row += [index + first if index >= 0 else -1 for index in claim.parent_row[skip:]]
        replace += claim.replace
        q.append(claim.q)
        if claim.ids is not None:
            listed.append(claim.ids)
    return Drawn(torch.cat(q), tuple(row), tuple(parent_row), tuple(replace), torch.cat(listed) if listed else None)
