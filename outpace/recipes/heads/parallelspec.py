"""ParallelSpec (Xiao et al. 2024): EAGLE's head drafts several tokens in one forward, in learned masks.

New here: nothing. Reuses: FeatureDrafter, MaskReader, dynamic_tree, grow, Rejection, Fixed or AdaptiveTree.
Exact at any temperature: the tree's tokens are chosen by probability and carry no claim; a drawn chain
carries its distributions, which depend on the text alone and not on the tokens drafted before.

A forward gives one distribution for each level, so that nodes of a level have the same candidates. The
paper does not say how many masks its heads have, nor whether forwards follow one another in a draft: here 4,
and with `depth` above 5 there are several, each behind all nodes of the level before.
"""

from functools import partial
from typing import Literal

from outpace.controllers.adaptive_tree import AdaptiveTree
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.drafters.model.mask_reader import MaskReader
from outpace.models.heads.parallelspec.kind import ParallelSpecModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2410.05589", family="trained heads")
def parallelspec(
    target: Target,
    *,
    head: ParallelSpecModel,
    tree: Literal["dynamic", "chain"] = "dynamic",
    depth: int = 5,
    width: int = 10,
    num_nodes: int = 59,
    adaptive: bool = False,
) -> Parts:
    """A tree whose levels a head drafts in one forward, verified by matching.

    Args:
        head: folder with a head of ParallelSpec that was trained for the target
        tree: the most probable paths, or a chain drawn from the head, which is verified by rejection
        depth: longest path that is drafted; the head runs once for as many levels as it has masks, and one
        width: paths extended per level of the tree, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
        adaptive: depth and num_nodes are upper bounds: as many as pay by measured times and acceptance
    """
    is_chain = tree == "chain"
    growth = grow if is_chain else partial(dynamic_tree, width=width, num_nodes=num_nodes)
    levels = 1 + (head.head.num_masks or depth)
    reader = partial(MaskReader, levels=levels)
    drafter = FeatureDrafter(head, target.vocab, growth, sampled=is_chain, reader=reader)
    if adaptive and is_chain:
        raise ValueError("adaptive sizes trees: use it with tree dynamic")
    sizes = target.sizes, head.model.sizes
    adapting = AdaptiveTree(depth, num_nodes, *sizes, levels_per_forward=levels)
    controller = adapting if adaptive else Fixed(depth)
    return Parts(target, drafter, Rejection(), controller)
