"""SpecDec++ (Huang et al. 2025): a chain that ends when a trained head expects a rejection in it.

New here: Survival, which multiplies the predicted acceptance of the draft's tokens and ends the draft when
1 minus the product exceeds a threshold, and HiddenStatePredictor, which predicts the acceptance of a token
from the draft model's hidden state after it. Reuses: DraftModel, Rejection. Exact at any temperature: the
token with which a draft ends stays in it, since dropping it would bias the output.

`outpace train specdec-pp --target TARGET --draft DRAFT --output FOLDER` trains the head; the draft model is
not changed. In the paper's model of the cost, drafts that end by such a threshold are the best there are. The
head learns from rejections with six times the weight of acceptances, so its predictions are lower than the
share of accepted tokens, and the default threshold is meant for that. Its blocks have weights of their own,
where the reference implementation repeats one block. The draft model reads each token before the head
predicts: a draft that ends early costs a forward of it more than its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.context import Context
from outpace.core.contracts import Frontier, Parts, Plan, Step, Target, Want, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.predictors.hidden_state.predictor import HiddenStatePredictor
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2405.19715", family="control and routing")
def specdec_pp(
    target: Target,
    *,
    draft: Target,
    predictor: HiddenStatePredictor,
    depth: int = 20,
    least: int = 2,
    threshold: float = 0.3,
) -> Parts:
    """A draft model's chain of a length that follows from predicted acceptance, verified by rejection.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        predictor: folder with a predictor that was trained for the draft model and the target
        depth: most tokens drafted per step
        least: tokens drafted per step at least
        threshold: end the draft when a rejection in it is predicted with more than this probability
    """
    predictor.prepare(draft, target)
    controller = Survival(predictor, depth, least, threshold)
    return Parts(target, DraftModel(draft, keeps_hidden=True), Rejection(), controller)


class Survival:
    """Implementation of core.contracts.Controller with the rule of SpecDec++ (Huang et al. 2025): chains of
    `least` to `depth` tokens that end with the first token with which the predicted probability that any
    token of the draft is rejected exceeds `threshold`.

    The predictor says from the draft model's hidden state after a token how probably that token is accepted
    if those before it are. The product over the draft, its survival, is the probability that all are. The
    draft model reads the last token before it is known to be the last, so a draft that ends early costs one
    more forward of it. That token stays in the draft, although its prediction ended it.
    """

    want = Want()
    plans_across_rows = False

    def __init__(self, predictor: HiddenStatePredictor, depth: int, least: int, threshold: float) -> None:
        """ValueError unless 1 <= `least` <= `depth` and 0 <= `threshold` <= 1."""
        if not 1 <= least <= depth:
            raise ValueError(
                f"least is {least} and depth {depth}: give a least number of tokens from 1 to depth"
            )
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}; give a probability from 0 to 1")
        self._predictor, self._depth, self._least, self._threshold = predictor, depth, least, threshold
        self._survival: dict[int, float] = {}  # row of the step that is planned -> that of its draft so far

    def plan(self, ctx: Context) -> Plan:
        self._survival = dict.fromkeys(range(len(ctx.slots)), 1.0)
        return Plan((self._depth,) * len(ctx.slots), stop=self._stopped, stop_reads=True)

    def _stopped(self, frontier: Frontier) -> list[bool]:
        assert frontier.hidden is not None, "the draft model keeps no hidden states"
        accepted = self._predictor.probs(frontier.hidden)
        stopped = list[bool]()
        for row, path, acceptance in zip(frontier.rows, frontier.paths, accepted, strict=True):
            self._survival[row] *= acceptance
            stopped.append(len(path) >= self._least and 1 - self._survival[row] > self._threshold)
        return stopped

    def observe(self, step: Step) -> None:
        """Does nothing: the predictor does not learn while decoding."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: the state belongs to one draft."""
