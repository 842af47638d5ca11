"""P-EAGLE (Hui et al. 2026): EAGLE-3's head drafts several tokens in one forward, in mask slots.

New here: nothing. Reuses: FeatureDrafter, MaskReader, dynamic_tree, grow, Rejection, Fixed or AdaptiveTree.
Exact at any temperature: the tree's tokens are chosen by probability and carry no claim; a drawn chain
carries its distributions, which depend on the text alone and not on the tokens drafted before.

A forward gives one distribution for each level, so that nodes of a level have the same candidates. A head
drafts at any depth, but masks behind those with which it was trained were never learned. Trained by
`outpace train p-eagle` on all positions with all masks; the authors leave out some, to save memory.
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
from outpace.models.heads.p_eagle.kind import PEagleModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2602.01469", family="trained heads")
def p_eagle(
    target: Target,
    *,
    head: PEagleModel,
    tree: Literal["dynamic", "chain"] = "dynamic",
    depth: int = 5,
    width: int = 10,
    num_nodes: int = 59,
    adaptive: bool = False,
) -> Parts:
    """A tree whose levels a head drafts in one forward, verified by matching.

    Args:
        head: folder with a head of P-EAGLE that was trained for the target
        tree: the most probable paths, or a chain drawn from the head, which is verified by rejection
        depth: longest path that is drafted; the head runs once
        width: paths extended per level of the tree, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
        adaptive: depth and num_nodes are upper bounds: as many as pay by measured times and acceptance
    """
    is_chain = tree == "chain"
    growth = grow if is_chain else partial(dynamic_tree, width=width, num_nodes=num_nodes)
    reader = partial(MaskReader, levels=depth)
    drafter = FeatureDrafter(head, target.vocab, growth, sampled=is_chain, reader=reader)
    if adaptive and is_chain:
        raise ValueError("adaptive sizes trees: use it with tree dynamic")
    sizes = target.sizes, head.model.sizes
    adapting = AdaptiveTree(depth, num_nodes, *sizes, levels_per_forward=depth)
    controller = adapting if adaptive else Fixed(depth)
    return Parts(target, drafter, Rejection(), controller)
