"""The ways to choose draft lengths for a batch, with what each of them is expected to generate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from outpace.cost.linear_cost import Numbers


class DraftChoices:
    """A table of possible draft lengths. In its entry (k - 1, m - 1) no row drafts more than k tokens, and
    all rows together draft m: those that are most likely to be accepted.

    Letters: B rows, K the largest limit.
    """

    def __init__(
        self, limits: Sequence[int], reached: Numbers, shares: Numbers, nodes_per_level: int = 1
    ) -> None:
        """`limits` (B,): largest draft length of each row. `reached` (B, K): probability that a token of the
        row's draft at this depth is accepted, falling with depth. `shares` (B,): share of the planned tokens
        that its drafter really drafts. `nodes_per_level`: draft tokens of a row at each depth."""
        self._num_rows, deepest = len(limits), max(limits)
        row, level = numpy.nonzero(numpy.arange(deepest) < numpy.array(limits)[:, None])
        order = numpy.argsort(-reached[row, level], kind="stable")
        self._row, level = row[order], level[order]
        self._within = level < numpy.arange(1, deepest + 1)[:, None]
        self._first = self._within & (level == 0)
        share = shares[self._row]
        self.levels = numpy.arange(1.0, deepest + 1)[:, None]  # of the deepest draft
        self.drafted: Numbers = nodes_per_level * (self._within * share).cumsum(1)  # draft tokens
        # expected number of tokens that the step generates: accepted ones, and the target's own one per row
        self.tokens: Numbers = self._num_rows + (self._within * share * reached[self._row, level]).cumsum(1)

    def sum_over_drafted_rows(self, values: Numbers) -> Numbers:
        """For each choice the sum of `values`, one per row, over the rows that get a draft."""
        return (self._first * values[self._row]).cumsum(1)

    def depths(self, line: int, column: int) -> list[int]:
        """The draft length of each row in one choice."""
        chosen = self._row[: column + 1][self._within[line, : column + 1]]
        return numpy.bincount(chosen, minlength=self._num_rows).tolist()
