"""Claims: what verification may assume about how draft tokens were made.

A claim states the distribution q that draft tokens were drawn from. Rejection sampling with a true claim
accepts more tokens; tokens without a claim are verified by matching, which is exact for any drafter; a false
claim biases the output. A tree may grow under its claim, but selecting among drawn tokens (dropping,
re-ordering or re-ranking them) changes their distribution and makes the claim false.

Letters: N nodes, M rows of q, K columns of q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


class Claim:
    """Base class of claims. A verifier lists the classes that it accepts."""


@dataclass(frozen=True, eq=False, slots=True)
class Drawn(Claim):
    """Tokens drawn from known distributions. `row`, `replace` and `q` describe one draw per node, in node
    order; a node that was drawn several times, from one distribution or from several, is listed in `draws`
    instead."""

    q: Tensor  # (M, K) at least float32, rows sum to 1, after temperature and truncation
    row: tuple[int, ...]  # (N,) row of q that node i itself was (first) drawn from; -1: chosen, not drawn
    replace: tuple[
        bool, ...
    ]  # (M,) siblings from this row drawn independently, or each without the earlier ones
    ids: Tensor | None = (
        None  # (M, K) int64 token of each column; None: column k is token k, K the vocabulary
    )
    draws: tuple[tuple[int, int], ...] | None = (
        None  # (node, row) of every draw, in order; None: one per node
    )

    def all_draws(self) -> Sequence[tuple[int, int]]:
        """(node, row) of every draw, in the order of drawing."""
        if self.draws is not None:
            return self.draws
        return [(node, row) for node, row in enumerate(self.row) if row >= 0]
