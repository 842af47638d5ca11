"""ReDrafter (Cheng et al. 2024): beam search over a recurrent network on a hidden state of the target.

New here: nothing. Reuses: PositionDrafter, best_paths, grow, Rejection, Fixed. Exact at any temperature: the
tree's tokens are those of the best paths, without a claim; a drawn chain carries the network's distributions.
The published rule for temperatures above 0 tests every path apart and keeps the longest, which changes the
output; it is not used here.

Paths of the beam search that begin with the same tokens share them, which leaves fewer tokens to verify.
Draft probabilities are compared at temperature 1, whatever the request's.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.best_paths import best_paths
from outpace.drafters.model.grow import grow
from outpace.drafters.model.position_drafter import position_drafter
from outpace.models.heads.redrafter.kind import ReDrafterModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2403.09919", family="trained heads")
def redrafter(
    target: Target,
    *,
    head: ReDrafterModel,
    tree: Literal["beam", "chain"] = "beam",
    depth: int = 5,
    width: int = 10,
    top_k: int = 50,
) -> Parts:
    """The paths of a beam search over a recurrent network, verified by matching.

    Args:
        head: folder with a recurrent drafter that was trained for the target
        tree: the paths of a beam search, or a chain drawn from the network, verified by rejection
        depth: tokens of each path; the network runs as often
        width: paths of the beam search
        top_k: most probable tokens after each path to which the beam search is limited
    """
    is_chain = tree == "chain"
    beam = partial(best_paths, branching=(width,) * depth, num_paths=width, width=width, top_k=top_k)
    drafter = position_drafter(head, target.vocab, grow if is_chain else beam, sampled=is_chain)
    return Parts(target, drafter, Rejection(), Fixed(depth))
