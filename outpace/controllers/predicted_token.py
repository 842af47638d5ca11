"""Draft until a token is predicted to be rejected."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.context import Context
from outpace.core.contracts import Frontier, Plan, Step, Want
from outpace.models.predictors.draft_distribution_predictor import DraftDistributionPredictor


class PredictedToken:
    """Implementation of core.contracts.Controller with DISCO's classifier (Mamou et al. 2024): chains of at
    most `depth` tokens that end with the first token whose predicted probability of being accepted is below
    `threshold`. That token stays in the draft.

    The prediction is made from the draft model's distribution before sampling parameters and the token's
    position, and so is the same for every token that might have been drawn.
    """

    want = Want()
    plans_across_rows = False

    def __init__(self, predictor: DraftDistributionPredictor, depth: int, threshold: float) -> None:
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}; give a probability from 0 to 1")
        self._predictor, self._depth, self._threshold = predictor, depth, threshold

    def plan(self, ctx: Context) -> Plan:
        return Plan((self._depth,) * len(ctx.slots), stop=self._stopped)

    def _stopped(self, frontier: Frontier) -> list[bool]:
        assert frontier.logits is not None, "the drafter has no logits"
        accepted = self._predictor.acceptance(frontier.logits, [len(path) for path in frontier.paths])
        return [each < self._threshold for each in accepted]

    def observe(self, step: Step) -> None:
        """Does nothing: the predictor does not learn while decoding."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""
