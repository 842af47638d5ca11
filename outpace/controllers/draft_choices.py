"""The ways to choose draft lengths for a batch, with what each of them is expected to generate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from outpace.controllers.linear_cost import Numbers


class DraftChoices:
    """A table of possible draft lengths. In its entry (k - 1, m - 1) no row drafts more than k tokens, and
    all rows together draft m: those that are most likely to be accepted.

    With acceptance rate a, token j of a draft is accepted with probability a^j, as the tokens before it must
    be accepted too.
    """

    def __init__(self, limits: Sequence[int], rates: Numbers, shares: Numbers) -> None:
        """For each row its largest draft length, its acceptance rate, and the share of planned tokens that
        its drafter really drafts."""
        self._num_rows, deepest = len(limits), max(limits)
        reached = rates[:, None] ** numpy.arange(1, deepest + 1)
        row, level = numpy.nonzero(numpy.arange(deepest) < numpy.array(limits)[:, None])
        order = numpy.argsort(-reached[row, level], kind="stable")
        self._row, level = row[order], level[order]
        self._within = level < numpy.arange(1, deepest + 1)[:, None]
        self._first = self._within & (level == 0)
        share = shares[self._row]
        self.forwards = numpy.arange(1.0, deepest + 1)[:, None]  # of the draft model
        self.drafted: Numbers = (self._within * share).cumsum(1)  # draft tokens
        # expected number of tokens that the step generates: accepted ones, and the target's own one per row
        self.tokens: Numbers = self._num_rows + (self._within * share * reached[self._row, level]).cumsum(1)

    def sum_over_drafted_rows(self, values: Numbers) -> Numbers:
        """For each choice the sum of `values`, one per row, over the rows that get a draft."""
        return (self._first * values[self._row]).cumsum(1)

    def depths(self, line: int, column: int) -> list[int]:
        """The draft length of each row in one choice."""
        chosen = self._row[: column + 1][self._within[line, : column + 1]]
        return numpy.bincount(chosen, minlength=self._num_rows).tolist()
