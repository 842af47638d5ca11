"""Stop drafting after a token of whose distribution the most probable token has a low probability."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.context import Context
from outpace.core.contracts import Frontier, Plan, Step, Want
from outpace.sampling.topk import at_least_float32


class TopProbability:
    """Implementation of core.contracts.Controller (Kangaroo, Liu et al. 2024): chains of at most `depth`
    tokens that end with the first token drawn or chosen from a distribution whose largest probability, before
    sampling parameters, is below `threshold`. The token itself, drawn by then, stays in the draft.

    With a threshold of 0 all drafts have `depth` tokens."""

    want = Want()
    plans_across_rows = False

    def __init__(self, depth: int, threshold: float) -> None:
        """ValueError for a threshold outside of 0 to 1."""
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}; give a probability from 0 to 1")
        self._depth, self._threshold = depth, threshold

    def plan(self, ctx: Context) -> Plan:
        return Plan((self._depth,) * len(ctx.slots), stop=self._stopped)

    def _stopped(self, frontier: Frontier) -> list[bool]:
        assert frontier.logits is not None
        largest = at_least_float32(frontier.logits).softmax(-1).amax(-1).tolist()
        return [each < self._threshold for each in largest]

    def observe(self, step: Step) -> None:
        """Does nothing: the plan never changes."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""
