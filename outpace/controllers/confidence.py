"""Stop drafting after a token of low draft probability. The token itself stays in the draft: if it were
dropped, the recorded q would not be the distribution of the remaining tokens."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.context import Context
from outpace.core.contracts import Frontier, Plan, Step, Want


class Confidence:
    """Implementation of core.contracts.Controller: chains of at most `depth` tokens that end with the first
    token whose draft probability is below `threshold`."""

    want = Want()
    plans_across_rows = False

    def __init__(self, depth: int, threshold: float) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold is {threshold}; give a probability above 0 and at most 1")
        self._depth, self._threshold = depth, threshold

    def plan(self, ctx: Context) -> Plan:
        return Plan((self._depth,) * len(ctx.slots), stop=self._stopped)

    def _stopped(self, frontier: Frontier) -> list[bool]:
        return [path[-1] < self._threshold for path in frontier.paths]

    def observe(self, step: Step) -> None:
        """Does nothing: the plan never changes."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""
