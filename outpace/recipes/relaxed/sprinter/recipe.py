"""SPRINTER (Zhong et al. 2025): a predictor stands in for the target, which tests the last draft token only.

A draft goes on while a small network, which reads the draft model's hidden state after each token, expects
that the target would accept it for certain. All tokens but the last stay untested, so the output has another
distribution.

New here: LastToken, which tests the last token of a draft; TrustedRun, which ends drafts; and the
distribution of the steps. Reuses: DraftModel. With `threshold` 1 no token is trusted, and every draft is one
token, tested as in speculative sampling: the output then has the target's distribution. A text ends with the
first stop token in a draft, which is tested; on an accelerator a draft may go on behind it, and it is then
trusted.

`outpace train sprinter --target TARGET --draft DRAFT --output FOLDER` trains the predictor; the draft model
is not changed.
"""

from outpace.core.contracts import Guarantee, Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.predictors.trust.predictor import TrustPredictor
from outpace.recipes.relaxed.sprinter.last_token import LastToken
from outpace.recipes.relaxed.sprinter.stated import SprinterSteps
from outpace.recipes.relaxed.sprinter.trusted_run import TrustedRun


@recipe(
    paper="arXiv:2502.04557",
    family="relaxed acceptance",
    guarantee=Guarantee.LOSSY,
    exact_with={"threshold": 1.0},
)
def sprinter(
    target: Target,
    *,
    draft: Target,
    predictor: TrustPredictor,
    depth: int = 20,
    threshold: float = 0.5,
) -> Parts:
    """A draft model's tokens, as long as a predictor trusts them; the target tests the last one.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        predictor: folder with a predictor that was trained for the draft model and the target
        depth: most tokens drafted per step
        threshold: go on after a token that is trusted with more than this probability; 1: never
    """
    predictor.prepare(draft, target)
    controller = TrustedRun(predictor, depth, threshold)
    verifier, reads = LastToken(controller.depth), controller.depth > 1
    stated = SprinterSteps(draft, predictor, depth, threshold) if reads else None
    return Parts(target, DraftModel(draft, keeps_hidden=reads), verifier, controller, stated)
