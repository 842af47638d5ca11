"""TAPS (Zbib et al. 2026): several heads for one target, each for texts of its kind, draft EAGLE-2's trees.

New here: MostConfident, which verifies the tree of the head that is most confident of it, and `averaged`, a
head with the mean of several heads' weights. Reuses: UnionDrafter, FeatureDrafter, dynamic_tree, Match,
Fixed. Exact at any temperature: all tokens are chosen by probability, carry no claim and are verified by
matching, so that neither the choice of a tree nor the merging of trees changes the distribution.

All heads draft in every step and read all generated tokens, whichever drafted them. With the routing "merged"
the target verifies the trees of all heads as one; tokens that several heads draft after the same path are one
node. At temperature 0 such a step generates as many tokens as that of the best head would. Compare it with
one head and as many nodes in all: two heads draft up to twice `num_nodes`. "confidence" compares the mean
draft probability of the trees' tokens, each given those before it; the paper leaves open which probability is
meant. "average" is one head with the mean of the weights, a baseline: in the paper it drafts worse than each
of the heads.

`outpace train hass` or `eagle` with data of one kind makes such a head.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.compose.most_confident import MostConfident
from outpace.drafters.compose.union import UnionDrafter
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.averaged import averaged
from outpace.models.heads.head_model import AnyEagleModel
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2603.27027", family="control and routing")
def taps(
    target: Target,
    *,
    heads: tuple[AnyEagleModel, ...],
    routing: Literal["merged", "confidence", "average"] = "merged",
    depth: int = 6,
    width: int = 10,
    num_nodes: int = 59,
) -> Parts:
    """Trees of the most probable paths of several heads, verified by matching.

    Args:
        heads: folders with heads of EAGLE, HASS or EAGLE-3 that were trained for the target, one or more
        routing: verify all trees as one, the tree of the most confident head, or that of an averaged head
        depth: longest path that is drafted; each head runs as often
        width: paths that each head extends per level, and tokens that it tries after each
        num_nodes: draft tokens of each head in a step, those of the most probable paths
    """
    if not heads:
        raise ValueError("taps needs heads: give one head or more")
    used = [averaged(heads, target)] if routing == "average" else heads
    growth = partial(dynamic_tree, width=width, num_nodes=num_nodes)
    drafters = [FeatureDrafter(head, target.vocab, growth, sampled=False) for head in used]
    drafter = MostConfident(drafters) if routing == "confidence" else UnionDrafter(drafters)
    return Parts(target, drafter, Match(), Fixed(depth))
