"""PARD (An et al. 2025): a draft model drafts a chain in one forward, in mask tokens.

New here: nothing. Reuses: DraftModel, in_masks, grow, Rejection, Fixed. Exact at any temperature: drawn
tokens carry the distributions they were drawn from, which depend on the text alone and not on the tokens
drafted before. Greedy drafts (`sampled` false) carry no claim.

The draft model is any causal language model that was trained to read masks, as by `outpace train pard`. It
reads them causally, so that what it computes for the text is as without them. A mask is a token of the
vocabulary; if it is drafted or generated it is a token like any other.
"""

from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import grow
from outpace.drafters.model.masks import in_masks
from outpace.models.mask_token import KEY, token_of
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2504.18583", family="base", proven_with={"mask": 0})
def pard(
    target: Target, *, draft: Target, depth: int = 8, mask: int | None = None, sampled: bool = True
) -> Parts:
    """A draft model's chain, drafted in one forward and verified by rejection.

    Args:
        draft: model that was trained to draft in masks; it has the same vocabulary as the target
        depth: tokens drafted per step
        mask: token that stands for a token to draft; None: that of the draft model's configuration
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    token = token_of(draft, mask, "mask", KEY, "pard")
    growth = partial(in_masks, growth=partial(grow, sampled=sampled), mask=token)
    return Parts(target, DraftModel(draft, sampled=sampled, growth=growth), Rejection(), Fixed(depth))
