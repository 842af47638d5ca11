"""CORAL (Weng et al. 2025): EAGLE-2's tree from a head with alike features in all steps and a light LM head.

New here: nothing but the head and its training. Reuses: FeatureDrafter, dynamic_tree, Match, Fixed or
AdaptiveTree. Exact at any temperature: the tokens are chosen by probability, carry no claim and are verified
by matching.

The rows of the LM head are in groups, from the most frequent tokens to the rarest. A node of the tree drafts
tokens of the first group and of the other one that the router holds most probable; draft probabilities are
normalised over these. A forward of the head ends before the LM head, and torch then multiplies by the rows of
all groups that any node of the forward chose, also where the rest of the head is compiled. So one path needs
2 of 16 groups; ten paths may need more, and the rows are held a second time, group by group. Without a router
all tokens are drafted.

The paper's code is not published. How groups are made and how many count (`head.groups`,
`head.active_groups` of `outpace train`) and the weight and temperature of the alignment are our reading.
"""

from functools import partial

from outpace.controllers.adaptive_tree import AdaptiveTree
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.coral.kind import CoralModel
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2502.16880", family="trained heads")
def coral(
    target: Target,
    *,
    head: CoralModel,
    depth: int = 6,
    width: int = 10,
    num_nodes: int = 59,
    adaptive: bool = False,
) -> Parts:
    """A tree of the most probable paths of CORAL's head, verified by matching.

    Args:
        head: folder with a head of CORAL that was trained for the target, with or without a router
        depth: longest path that is drafted; the head runs as often
        width: paths extended per level, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
        adaptive: depth and num_nodes are upper bounds: as many as pay by measured times and acceptance
    """
    growth = partial(dynamic_tree, width=width, num_nodes=num_nodes)
    controller = AdaptiveTree(depth, num_nodes, target.sizes, head.model.sizes) if adaptive else Fixed(depth)
    return Parts(target, FeatureDrafter(head, target.vocab, growth, sampled=False), Match(), controller)
