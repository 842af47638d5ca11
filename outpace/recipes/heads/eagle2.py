"""EAGLE-2 (Li et al. 2024): the tree of each step follows the confidence of EAGLE's head.

New here: nothing. Reuses: FeatureDrafter, dynamic_tree, Match, Fixed or AdaptiveTree. Exact at any
temperature: the tokens are chosen by probability, carry no claim and are verified by matching.

Any head of EAGLE works. Draft probabilities are compared at temperature 1, whatever the request's.
"""

from functools import partial

from outpace.controllers.adaptive_tree import AdaptiveTree
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.eagle.kind import EagleModel
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2406.16858", family="trained heads")
def eagle2(
    target: Target,
    *,
    head: EagleModel,
    depth: int = 6,
    width: int = 10,
    num_nodes: int = 59,
    adaptive: bool = False,
) -> Parts:
    """A tree of the most probable paths of EAGLE's head, verified by matching.

    Args:
        head: folder with a head of EAGLE that was trained for the target
        depth: longest path that is drafted; the head runs as often
        width: paths extended per level, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
        adaptive: depth and num_nodes are upper bounds: as many as pay by measured times and acceptance
    """
    growth = partial(dynamic_tree, width=width, num_nodes=num_nodes)
    controller = AdaptiveTree(depth, num_nodes, target.sizes, head.model.sizes) if adaptive else Fixed(depth)
    return Parts(target, FeatureDrafter(head, target.vocab, growth, sampled=False), Match(), controller)
