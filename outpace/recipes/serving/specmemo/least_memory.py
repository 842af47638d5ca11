"""The least memory with which drafts keep a share of their speed (Yildirim and Chen 2025)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy

from outpace.controllers.step_cost import StepCost
from outpace.core.context import Context
from outpace.core.contracts import Step
from outpace.cost.linear_cost import Numbers

FIRST_DEPTHS = (1.0, 0.5, 0.25, 0.0)  # shares of the depths in the first drafts, so that times differ
LEAST_SECONDS = 1e-9  # of a step


class LeastMemory:
    """Makes drafts smaller while the predicted speed stays at least `share` of the best one without a budget.

    The speed of a step is its expected number of tokens by its predicted time. The best is taken over all
    depths that are the same in all rows, as far as these allow. Levels are removed in the order in which they
    gain least per byte; the smallest drafts that are fast enough are taken, or none at all. If none of them
    is, as the budget permits only small ones, the fastest are.

    Letters: M choices of depths, B rows.
    """

    def __init__(self, share: float, nodes: Sequence[int], sizes: Sequence[int] = ()) -> None:
        """`nodes`: number of draft nodes of a row by depth. `sizes`: those to which the target's forwards are
        padded. ValueError for a share outside of 0 to 1."""
        if not 0 <= share <= 1:
            raise ValueError(f"min_speed is {share}; give a share of the speed, from 0 to 1")
        self._share, self._nodes = share, numpy.array(nodes)
        self._cost = StepCost(sizes)
        self._num_drafts = 0

    def reduced(
        self,
        ctx: Context,
        limits: Sequence[int],  # (B,) largest depths without a budget
        depths: Sequence[int],  # (B,) largest depths that the budget permits
        rates: Sequence[float],  # (B,) probability that a token at a level is accepted if one above it was
        gain: Callable[[int, int], float],  # (row, level) -> what a level is worth, per byte
    ) -> list[int]:
        """The depths of the smallest drafts that are fast enough."""
        if any(depths) and self._num_drafts < len(FIRST_DEPTHS):
            self._num_drafts += 1
            return [round(FIRST_DEPTHS[self._num_drafts - 1] * depth) for depth in depths]
        self._cost.update()
        smaller = [list(depths)]
        while any(smaller[-1]):
            last = smaller[-1]
            row = min((row for row, depth in enumerate(last) if depth), key=lambda r: gain(r, last[r]))
            smaller.append([depth - (each == row) for each, depth in enumerate(last)])
        equal = [[min(depth, limit) for limit in limits] for depth in range(max(limits) + 1)]
        least = self._share * self._speeds(ctx, equal, rates).max()
        speeds = self._speeds(ctx, smaller, rates)
        enough = numpy.flatnonzero(speeds >= least)
        return smaller[int(enough[-1] if len(enough) else speeds.argmax())]

    def observe(self, step: Step) -> None:
        """Learn the time of a step."""
        ctx, drafted = step.ctx, len(step.draft.tree) - len(step.ctx.slots)
        reads = ctx.unread is not None and any(len(unread) for unread in ctx.unread)
        if not reads and all(step.generated) and "score" in step.seconds:
            self._cost.record(step, drafted)
            # the draft model reads what was generated in the step before, about as much as in this one
            self._cost.record_drafting(step, drafted + sum(map(len, step.generated)))

    def _speeds(self, ctx: Context, choices: Sequence[Sequence[int]], rates: Sequence[float]) -> Numbers:
        """(M,) predicted tokens per second with these depths (M × B)."""
        depths, rate = numpy.array(choices), numpy.array(rates)
        reached = numpy.cumsum(rate[:, None] ** numpy.arange(1, len(self._nodes)), axis=1)
        expected = numpy.concatenate((numpy.zeros((len(rate), 1)), reached), axis=1)  # (B, largest depth + 1)
        tokens = len(rate) + expected[numpy.arange(len(rate)), depths].sum(1)
        drafted = self._nodes[depths].sum(1).astype(float)
        unread = 0 if ctx.unread is None else sum(map(len, ctx.unread))
        rows, context = len(ctx.slots), sum(ctx.committed)
        seconds = self._cost.seconds(rows, context, unread, depths.max(1).astype(float), drafted)
        return tokens / numpy.maximum(seconds, LEAST_SECONDS)
