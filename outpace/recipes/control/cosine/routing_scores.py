"""Which of several drafters draft for a request, by how well each of them drafted in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from outpace.core.context import Context
from outpace.core.noise import Key

EXPLORE = "explore"  # use of the noise keys: draw 0 decides whether to explore, draw 1 which drafter is added
FIRST_SCORE = 1.0  # the largest there is: a drafter of which nothing is known is tried


class RoutingScores:
    """The routing scores of CoSine (Gao et al. 2025) for each request and drafter, between 0 and 1.

    After each step M <- beta M + (1 - beta) s for the drafters that took part, where s is the mean, over the
    tokens that were verified, of the confidence of the drafter's own token if it was the one generated, else
    0. The drafters with the largest M draft. With a small probability, and after a step in which no draft
    token was accepted, one of the others joins them.
    """

    def __init__(self, num_drafters: int, chosen: int, *, beta: float, explore: float) -> None:
        """`chosen`: drafters that draft in a step; all, if there are fewer. `explore`: the probability that
        one more does. ValueError for fewer than one, and for numbers outside of 0 to 1."""
        if chosen < 1:
            raise ValueError(f"chosen is {chosen}; let 1 draft model or more draft")
        if not (0 <= beta < 1 and 0 <= explore <= 1):
            raise ValueError(f"beta is {beta} and explore {explore}; give 0 to below 1, and 0 to 1")
        self._num_drafters, self._chosen, self._beta, self._explore = num_drafters, chosen, beta, explore
        self._scores: dict[int, list[float]] = {}  # slot -> score of each drafter
        self._failed: set[int] = set()  # slots in whose last step no draft token was accepted

    def scores(self, slot: int) -> list[float]:
        """The score of each drafter for the request in this slot."""
        return self._scores.setdefault(slot, [FIRST_SCORE] * self._num_drafters)

    def choose(self, ctx: Context, rows: Sequence[int]) -> dict[int, list[int]]:
        """The drafters of each of these rows of the batch, in the order of their scores."""
        found = {row: self._ranked(ctx.slots[row]) for row in rows}
        open_rows = [row for row in rows if len(found[row]) > self._chosen]
        added = {row: at for row in open_rows if (at := self._added(ctx, row, found[row])) is not None}
        return {
            row: ranked[: self._chosen] + ([added[row]] if row in added else [])
            for row, ranked in found.items()
        }

    def _ranked(self, slot: int) -> list[int]:
        scores = self.scores(slot)
        return sorted(range(self._num_drafters), key=lambda drafter: -scores[drafter])

    def _added(self, ctx: Context, row: int, ranked: Sequence[int]) -> int | None:
        """A further drafter of a row, if one is added."""
        joins = ctx.slots[row] in self._failed
        if not joins and self._explore:
            (joins,) = ctx.noise.flip([self._explore], Key((row,), (0,), (0,), EXPLORE))
        if not joins:
            return None
        others = ranked[self._chosen :]
        equal = torch.ones(1, len(others), dtype=torch.float64)
        return others[int(ctx.noise.choose(equal, Key((row,), (0,), (0,), EXPLORE, 1)))]

    def record(self, slot: int, found: Mapping[int, float], accepted: int) -> None:
        """Add a step: the score s of each drafter that took part, and the number of accepted tokens."""
        scores = self.scores(slot)
        for drafter, score in found.items():
            scores[drafter] = self._beta * scores[drafter] + (1 - self._beta) * score
        self._failed.discard(slot)
        if not accepted:
            self._failed.add(slot)

    def release(self, slots: Sequence[int]) -> None:
        """Forget these requests."""
        for slot in slots:
            self._scores.pop(slot, None)
            self._failed.discard(slot)
