"""Polybasic decoding (Wang et al. 2025): a draft model drafts for a middle model, and this for the target.

New here: nothing. Reuses: Staged, DraftModel, Rejection or Block, Fixed. Exact at any temperature: a draft
carries the middle model's distributions, whichever model wrote its tokens first. The middle model may be the
target itself with weights of fewer bits. `outpace.cost.stages` says when a middle model pays.
"""

from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.compose.staged import Staged
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.block import Block
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2510.26527", family="stages", proven_with={"depth": 2, "inner_depth": 2})
def polybasic(
    target: Target,
    *,
    middle: Target,
    draft: Target,
    depth: int = 8,
    inner_depth: int = 4,
    verification: Literal["token", "block"] = "token",
) -> Parts:
    """Drafts of a middle model for which a smaller one drafts.

    Args:
        middle: model between the two, with the same vocabulary: a smaller target, or the target with weights
            of fewer bits
        draft: model that drafts for the middle one; it has the same vocabulary
        depth: tokens after which the middle model's draft ends, with the step that gives the last of them
        inner_depth: tokens that the draft model drafts for a step of the middle model
        verification: whether both models accept tokens one by one or as a block
    """
    if depth < 1 or inner_depth < 1:
        raise ValueError(f"depth is {depth} and inner_depth {inner_depth}: each is 1 or more")
    rule = Block if verification == "block" else Rejection
    inner = Parts(middle, DraftModel(draft), rule(), Fixed(inner_depth))
    return Parts(target, Staged(inner, least=depth), rule(), Fixed(depth + inner_depth))
