"""How long a method's drafts are and how much of them is accepted, as far as steps depend on it.

Letters: K largest draft length, B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import numpy

from outpace.cost.linear_cost import Numbers

MOST_ROWS = 64  # of more, the sum of the draft lengths is taken for its mean, from which it hardly differs


@dataclass(frozen=True)
class Drafts:
    """Shares of the row-steps (one row of the batch in one step) of a method."""

    reached: Sequence[float]  # (K,) [j]: with a draft of more than j tokens, or levels of a tree
    accepted: Sequence[float]  # (K,) [j]: in which more than j draft tokens are accepted
    # draft tokens of a row-step if drafts are trees; None: chains
    tree_nodes: float | None = None
    # whether shorter drafts would begin alike: chains of a model would, trees and what is found in a text
    # need not
    can_be_cut: bool = True

    def __post_init__(self) -> None:
        if len(self.reached) != len(self.accepted):
            raise ValueError("drafts need as many shares of accepted tokens as of drafted ones")

    @staticmethod
    def chain(rates: Sequence[float]) -> Drafts:
        """Chains that are always drafted to the end. `rates[j]`: how often token j + 1 is accepted if those
        before it were."""
        return Drafts((1.0,) * len(rates), tuple(accumulate(rates, mul)))

    @property
    def longest(self) -> int:
        return len(self.reached)

    @property
    def lengths(self) -> Sequence[int]:
        """The draft lengths of which acceptance is known: all up to the longest, or that one alone."""
        return range(1, self.longest + 1) if self.can_be_cut else [self.longest]

    @property
    def rates(self) -> list[float]:
        """(K,) how often each token is accepted, of all row-steps in which those before it were."""
        before = [1.0, *self.accepted]
        return [now / then if then else 0.0 for then, now in zip(before, self.accepted, strict=False)]

    def drafted(self, length: int) -> float:
        """Mean number of draft tokens that a row has in a step."""
        return sum(self.reached[:length]) if self.tree_nodes is None else self.tree_nodes

    def totals(self, length: int, rows: int) -> Numbers:
        """Entry n: probability that the rows of a step, independent of one another, have n draft tokens
        together. Of trees, and of many rows together, only the mean is told."""
        if self.tree_nodes is not None or rows > MOST_ROWS:
            total = self.drafted(length) * rows
            found = numpy.zeros(int(total) + 2)
            found[int(total)], found[int(total) + 1] = 1 - total % 1, total % 1
            return found
        longer = [1.0, *self.reached[:length], 0.0]
        own = numpy.maximum(0.0, -numpy.diff(longer))
        found = numpy.ones(1)
        for _ in range(rows):
            found = numpy.convolve(found, own)
        return found
