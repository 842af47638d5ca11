"""Speculative sampling (Leviathan et al. 2023; Chen et al. 2023): a drafted chain, verified by rejection.

New here: nothing. Reuses: DraftModel, Rejection, Fixed, Confidence. Exact at any temperature: drawn tokens
carry the distribution they were drawn from; greedy drafts (`sampled` false) carry no claim. A token whose low
draft probability ends the draft stays in it, since dropping it would bias the output.
"""

from outpace.controllers.confidence import Confidence
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2211.17192, arXiv:2302.01318", family="base")
def speculative_sampling(
    target: Target, *, draft: Target, depth: int = 5, sampled: bool = True, confidence_threshold: float = 0.0
) -> Parts:
    """A draft model's chain, verified by rejection token by token.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        depth: tokens drafted per step
        sampled: draw the draft tokens; false drafts the most probable ones
        confidence_threshold: stop drafting after a token whose draft probability is below this; 0 never stops
    """
    controller = Confidence(depth, confidence_threshold) if confidence_threshold else Fixed(depth)
    return Parts(target, DraftModel(draft, sampled=sampled), Rejection(), controller)
