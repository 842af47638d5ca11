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

from outpace.controllers.survival import Survival
from outpace.core.contracts import Parts, Target, recipe
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
