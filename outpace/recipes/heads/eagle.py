"""EAGLE (Li et al. 2024): a one-layer head continues the target's hidden states, a static tree is drafted.

New here: nothing. Reuses: FeatureDrafter, SHAPE, grow, Rejection, Fixed. Exact at any temperature:
the children of a node are drawn without replacement from the head's distribution, which they carry as a
claim; at temperature 0 they are the most probable tokens.

The head was trained for one target. A prompt is read by the target and, part by part, by the head, in
forwards of their own; the server's prefix cache has no effect.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.eagle_tree import SHAPE
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.models.heads.eagle.kind import EagleModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2401.15077", family="trained heads")
def eagle(
    target: Target,
    *,
    head: EagleModel,
    tree: Literal["static", "chain"] = "static",
    depth: int = 5,
    sampled: bool = True,
) -> Parts:
    """A tree or chain drawn from a head over the target's last hidden states, verified by rejection.

    Args:
        head: folder with a head of EAGLE that was trained for the target
        tree: the paper's tree of 25 tokens, or a chain, which costs less where forwards are not free
        depth: tokens of the chain
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    drafter = FeatureDrafter(head, target.vocab, partial(grow, sampled=sampled), sampled=sampled)
    return Parts(target, drafter, Rejection(), Fixed(depth if tree == "chain" else SHAPE))
