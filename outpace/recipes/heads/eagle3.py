"""EAGLE-3 (Li et al. 2025): a head over the hidden states of several layers, trained on its own drafts.

New here: nothing. Reuses: FeatureDrafter, dynamic_tree, grow, Rejection, Fixed or AdaptiveTree. Exact at any
temperature: the tree's tokens are chosen by probability and carry no claim; a drawn chain carries its
distribution.

The head may draft from a part of the vocabulary. Verification always uses the target's distribution over all
of it.
"""

from functools import partial
from typing import Literal

from outpace.controllers.adaptive_tree import AdaptiveTree
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.models.heads.eagle3.kind import Eagle3Model
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2503.01840", family="trained heads")
def eagle3(
    target: Target,
    *,
    head: Eagle3Model,
    tree: Literal["dynamic", "chain"] = "dynamic",
    depth: int = 8,
    width: int = 10,
    num_nodes: int = 59,
    adaptive: bool = False,
) -> Parts:
    """A tree of the most probable paths of a head over several layers, verified by matching.

    Args:
        head: folder with a head of EAGLE-3 that was trained for the target
        tree: the most probable paths, or a chain drawn from the head, which is verified by rejection
        depth: longest path that is drafted; the head runs as often
        width: paths extended per level of the tree, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
        adaptive: depth and num_nodes are upper bounds: as many as pay by measured times and acceptance
    """
    is_chain = tree == "chain"
    growth = grow if is_chain else partial(dynamic_tree, width=width, num_nodes=num_nodes)
    drafter = FeatureDrafter(head, target.vocab, growth, sampled=is_chain)
    if adaptive and is_chain:
        raise ValueError("adaptive sizes trees: use it with tree dynamic")
    controller = AdaptiveTree(depth, num_nodes, target.sizes, head.model.sizes) if adaptive else Fixed(depth)
    return Parts(target, drafter, Rejection(), controller)
