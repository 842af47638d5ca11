"""When SPRINTER's drafts end (Zhong et al. 2025): with the first token that its predictor does not trust."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.context import Context
from outpace.core.contracts import Frontier, Plan, Step, Want
from outpace.models.predictors.predictor import StatePredictor


class TrustedRun:
    """Implementation of core.contracts.Controller: chains of at most `depth` tokens that go on after a token
    if the predictor trusts it with a probability of more than `threshold`.

    The draft model reads a token before the predictor is asked; where the draft ends there, the next draft
    does not read it again if it stays.
    """

    want = Want()
    plans_across_rows = False

    def __init__(self, predictor: StatePredictor, depth: int, threshold: float) -> None:
        """ValueError unless `depth` is 1 or more and 0 <= `threshold` <= 1."""
        if depth < 1:
            raise ValueError(f"depth is {depth}; give 1 or more tokens")
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}; give a probability from 0 to 1")
        self._predictor, self._threshold = predictor, threshold
        self.depth = depth if threshold < 1 else 1  # with 1 no token is trusted

    def plan(self, ctx: Context) -> Plan:
        depth = (self.depth,) * len(ctx.slots)
        return Plan(depth, stop=self._stopped, stop_reads=True) if self.depth > 1 else Plan(depth)

    def _stopped(self, frontier: Frontier) -> list[bool]:
        assert frontier.hidden is not None, "the draft model keeps no hidden states"
        return [not trust > self._threshold for trust in self._predictor.probs(frontier.hidden)]

    def observe(self, step: Step) -> None:
        """Does nothing: the predictor does not learn while decoding."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: the state belongs to one draft."""
