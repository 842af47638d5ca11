"""Judge Decoding (Bachmann et al. 2025): a trained judge accepts draft tokens that are right although the
target would have written others.

The judge is a linear layer on the target's hidden state after reading a draft token, which shows whether the
target takes that token for an error. A token that is the target's own choice is accepted in any case, so
that at least as much is accepted as by matching. The output has another distribution.

New here: Judged, and the distribution of its steps. Reuses: DraftModel, Fixed. With `threshold` 1 the judge
accepts nothing, and the output has the target's distribution. It pays with long drafts of a strong draft
model: the paper's are longer than the default, for targets of 70B and 405B parameters.

`outpace train judge-decoding --target TARGET --data FILE --output FOLDER` trains a judge on right and wrong
answers in which the errors are marked. Nothing protects from errors that it has not learned to see.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Guarantee, Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.plain_drafts import PlainChains
from outpace.models.predictors.judge.predictor import JudgePredictor
from outpace.recipes.relaxed.judge_decoding.judged import Judged
from outpace.recipes.relaxed.judge_decoding.stated import JudgedSteps


@recipe(
    paper="arXiv:2501.19309",
    family="relaxed acceptance",
    guarantee=Guarantee.LOSSY,
    exact_with={"threshold": 1.0},
)
def judge_decoding(
    target: Target,
    *,
    draft: Target,
    judge: JudgePredictor,
    threshold: float = 0.5,
    depth: int = 10,
) -> Parts:
    """A draft model's most probable tokens, accepted where the target agrees or a judge finds them right.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        judge: folder with a judge that was trained for the target
        threshold: a token is right with more than this probability; 1: never
        depth: tokens drafted per step
    """
    judge.prepare(target)
    verifier = Judged(judge, threshold)
    lossy = verifier.guarantee is Guarantee.LOSSY
    stated = JudgedSteps(target, PlainChains(draft, depth), judge, threshold) if lossy else None
    return Parts(target, DraftModel(draft, sampled=False), verifier, Fixed(depth), stated)
