"""The ways to choose draft lengths for a batch, with what each of them is expected to generate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

Numbers = NDArray[numpy.float64]


class DraftChoices:
    """Choices of a draft length per row, as a table: line k - 1 has drafts of at most k tokens, and column m
    the m + 1 draft tokens that are most likely to be reached among those.

    The draft token at depth j of a row is reached if the j before it, counted with itself, are accepted:
    with probability a^j for acceptance rate a.
    """

    def __init__(self, limits: Sequence[int], rates: Numbers, shares: Numbers) -> None:
        """Per row the largest draft length, the acceptance rate, and how many of the planned tokens its
        drafter drafts, from 0 to 1."""
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
        # generated tokens, with each row's bonus token
        self.tokens: Numbers = self._num_rows + (self._within * share * reached[self._row, level]).cumsum(1)

    def sum_over_drafted_rows(self, values: Numbers) -> Numbers:
        """For each choice the sum of `values`, one per row, over the rows that get a draft."""
        return (self._first * values[self._row]).cumsum(1)

    def depths(self, line: int, column: int) -> list[int]:
        """The draft length of each row in one choice."""
        chosen = self._row[: column + 1][self._within[line, : column + 1]]
        return numpy.bincount(chosen, minlength=self._num_rows).tolist()
