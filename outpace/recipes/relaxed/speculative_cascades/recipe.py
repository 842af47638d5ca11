"""Speculative cascades (Narasimhan et al. 2025): the output mixes the target with its draft model.

Where the draft model is sure enough, its own tokens are taken instead of the target's. Six rules say where;
each makes one distribution from the two models', which is then verified exactly in place of the target's.

New here: Deferral, Transformed and the distribution that they give. Reuses: DraftModel, Rejection, Block,
Fixed. The rules look at both models before sampling parameters and mix what the request samples from. The
token after a whole accepted draft is mixed too, for which the draft model reads one token more than it
drafts; other implementations take it from the target. With `alpha` -1 all rules but `opt` defer every token,
and the output has the target's distribution. The paper tries many values of `alpha`; the default is a choice
made here."""

from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Guarantee, Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.recipes.relaxed.speculative_cascades.rules import Deferral, Rule
from outpace.recipes.relaxed.speculative_cascades.stated import CascadeProbs
from outpace.recipes.relaxed.speculative_cascades.transformed import Transformed
from outpace.verifiers.block import Block
from outpace.verifiers.rejection import Rejection


@recipe(
    paper="arXiv:2405.19261",
    family="relaxed acceptance",
    guarantee=Guarantee.LOSSY,
    exact_with={"rule": "token-v3", "alpha": -1.0},
)
def speculative_cascades(
    target: Target,
    *,
    draft: Target,
    rule: Rule = "token-v3",
    alpha: float = 0.3,
    depth: int = 5,
    verification: Literal["token", "block"] = "token",
) -> Parts:
    """A draft model's chain, of which more is kept where the draft model is sure.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        rule: which of six says where the draft model's tokens are kept
        alpha: how much is kept: -1 nothing (but with opt), larger values more of the draft model
        depth: tokens drafted per step
        verification: verify token by token, or the chain as a block
    """
    deferral, controller = Deferral(rule, alpha), Fixed(depth)
    exact = Block() if verification == "block" else Rejection()
    if deferral.is_exact:
        return Parts(target, DraftModel(draft), exact, controller)
    drafter, verifier = DraftModel(draft, reads_leaves=True), Transformed(deferral.mixed, exact)
    return Parts(target, drafter, verifier, controller, CascadeProbs(rule, alpha, draft))
