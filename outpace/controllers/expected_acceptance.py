"""Stop drafting before a token that is unlikely to be accepted, as the drafter itself predicts it."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.context import Context
from outpace.core.contracts import Frontier, Plan, Step, Want


class ExpectedAcceptance:
    """Implementation of core.contracts.Controller: drafts of at most `depth` tokens that end before the first
    token which is expected to be accepted, together with those before it, with a probability below
    `threshold`. The first token of a draft is always drafted.

    The prediction may depend on the tokens drafted so far, but not on the one in question: whether a token is
    drafted is decided before it is drawn, and no token that was drawn is dropped, so it stays exact."""

    want = Want()
    plans_across_rows = False

    def __init__(self, depth: int, threshold: float) -> None:
        """ValueError for a threshold outside of 0 to 1."""
        if not 0 <= threshold <= 1:
            raise ValueError(f"the probability below which a draft ends is {threshold}: give one from 0 to 1")
        self._depth, self._threshold = depth, threshold

    def plan(self, ctx: Context) -> Plan:
        return Plan((self._depth,) * len(ctx.slots), stop=self._stopped)

    def _stopped(self, frontier: Frontier) -> list[bool]:
        assert frontier.survival is not None, "the drafter does not predict acceptance"
        return [survival < self._threshold for survival in frontier.survival]

    def observe(self, step: Step) -> None:
        """Does nothing: the plan never changes."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""
