"""DISCO (Mamou et al. 2024): a chain that ends with the first token that is likely to be rejected.

New here: PredictedToken and DraftDistributionPredictor, a classifier of two layers on the probabilities of
the draft's ten most probable tokens, the entropy and the position in the draft; LearnedConfidence, the
variant without training. Reuses: DraftModel, Rejection. Exact at any temperature: the token with which a
draft ends stays in it, since dropping it would bias the output.

With `predictor`, from `outpace train disco --target TARGET --draft DRAFT --output FOLDER`, a draft ends with
the first token whose predicted probability of being accepted is below `threshold`. Its features are those of
the draft model's distribution before sampling parameters. The width of its layers is not published, and the
threshold is to be tuned on texts like yours.

Without it, as in transformers' assisted generation, a draft ends with the first token whose own draft
probability is below a threshold, which begins as given. After every step it becomes the value with the least
false positives plus three times the false negatives among the last 1,024 verified tokens. What is learned
lasts as long as these parts: one call of `outpace.generate` with all its prompts, or a server.
"""

from __future__ import annotations

from collections.abc import Sequence

from outpace.controllers.learned_confidence import LearnedConfidence
from outpace.core.context import Context
from outpace.core.contracts import Frontier, Parts, Plan, Step, Target, Want, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.predictors.draft_distribution.predictor import DraftDistributionPredictor
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2405.04304", family="control and routing")
def disco(
    target: Target,
    *,
    draft: Target,
    predictor: DraftDistributionPredictor | None = None,
    depth: int = 20,
    threshold: float = 0.4,
) -> Parts:
    """A draft model's chain that ends with a token that is likely to be rejected, verified by rejection.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        predictor: folder with a predictor that was trained for both models; none: draft probabilities decide
        depth: most tokens drafted per step
        threshold: a token of a lower probability ends the draft; without a predictor only at first
    """
    if predictor is None:
        return Parts(target, DraftModel(draft), Rejection(), LearnedConfidence(depth, threshold))
    predictor.prepare(draft, target)
    return Parts(target, DraftModel(draft), Rejection(), PredictedToken(predictor, depth, threshold))


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
