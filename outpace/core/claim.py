"""Claims: what verification may assume about how draft tokens were made.

A drafter's distribution q is a claim, not a hint. A token with a true claim may be accepted generously; a
token without one is always verified exactly, by matching; a token with a false claim biases the output.
Claims survive growing a tree, never choosing among what was drawn: dropping, re-ordering or re-ranking drawn
tokens voids the claim.

Letters: N nodes, M rows of q, K columns of q.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


class Claim:
    """Base of claims. A verifier names the kinds it understands; the engine never looks inside."""


@dataclass(frozen=True, eq=False, slots=True)
class Drawn(Claim):
    """Tokens drawn from known distributions, in the order in which siblings stand."""

    q: Tensor  # (M, K) at least float32, rows sum to 1, after temperature and truncation
    row: tuple[int, ...]  # (N,) row of q that node i itself was drawn from; -1: chosen, not drawn
    replace: tuple[
        bool, ...
    ]  # (M,) siblings of this row drawn independently, or each without the earlier ones
    ids: Tensor | None = (
        None  # (M, K) int64 token of each column; None: column k is token k and K is the vocabulary
    )
