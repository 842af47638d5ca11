"""Speculative contrastive decoding (Yuan et al. 2024): a draft model drafts, and what it likes too much is
held against the target's tokens.

Contrastive decoding (Li et al. 2022) samples from the difference of the logits of a large and a small model,
among the tokens that the large one finds plausible. The small model is the draft model here, so that its
logits are there already; the distribution is verified exactly in place of the target's.

New here: Contrast and the distribution that it gives. Reuses: DraftModel, Rejection, Block, Fixed. The token
after a whole accepted draft is contrasted too, for which the draft model reads one token more than it drafts.
Sampling parameters that change logits, as penalties do, change both models' before they are contrasted;
temperature and truncation apply to the difference. With `beta` and `alpha` 0 the output has the target's
distribution."""

from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Guarantee, Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.recipes.relaxed.scd.contrast import Contrast
from outpace.recipes.relaxed.scd.contrasted import Contrasted
from outpace.recipes.relaxed.scd.stated import ContrastProbs
from outpace.verifiers.block import Block
from outpace.verifiers.rejection import Rejection


@recipe(
    paper="arXiv:2311.08981",
    family="relaxed acceptance",
    guarantee=Guarantee.LOSSY,
    exact_with={"beta": 0.0, "alpha": 0.0},
)
def scd(
    target: Target,
    *,
    draft: Target,
    beta: float = 0.5,
    alpha: float = 0.1,
    depth: int = 4,
    verification: Literal["token", "block"] = "token",
) -> Parts:
    """A draft model's chain, verified against the difference of both models' logits.

    Args:
        draft: model that drafts and is contrasted with the target; it has the same vocabulary
        beta: weight of the draft model's logits in the difference: 0 the target's own
        alpha: least probability of a token beside the target's most probable one; 0: no limit
        depth: tokens drafted per step
        verification: verify token by token, or the chain as a block
    """
    contrast, controller = Contrast(beta, alpha), Fixed(depth)
    exact = Block() if verification == "block" else Rejection()
    if contrast.is_exact:
        return Parts(target, DraftModel(draft), exact, controller)
    drafter, verifier = DraftModel(draft, reads_leaves=True), Contrasted(contrast, exact)
    return Parts(target, drafter, verifier, controller, ContrastProbs(beta, alpha, draft))
