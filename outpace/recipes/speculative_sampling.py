"""Speculative sampling (Leviathan et al. 2023; Chen et al. 2023): a small model drafts a chain, rejection keeps p.

New here: nothing. Reuses: LM, Rejection, Fixed, Confidence. Exact at any temperature: drawn tokens carry the distribution they
were drawn from, and greedy drafts (`sampled=False`) carry no claim. `confidence` above 0 stops a draft after a token
that the drafter believed in less than that; the token itself stays, since dropping it would bias the output.
"""

from outpace.controllers.confidence import Confidence
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2211.17192, arXiv:2302.01318", family="base")
def speculative_sampling(
    target: Target, *, draft: Target, depth: int = 5, sampled: bool = True, confidence: float = 0.0
) -> Parts:
    controller = Confidence(depth, confidence) if confidence else Fixed(depth)
    return Parts(target, DraftModel(draft, sampled=sampled), Rejection(), controller)
