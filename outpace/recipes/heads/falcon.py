"""Falcon (Gao et al. 2025): a head drafts two tokens in each forward, from the last two tokens of a path.

New here: nothing. Reuses: BlockDrafter, dynamic_tree, grow, Rejection, Fixed. Exact at any temperature: the
tree's tokens are chosen by probability and carry no claim; a drawn chain carries its distributions, and that
of a block's second token does not depend on the first.

Trees hold the most probable paths, as EAGLE-2's; the authors' trees have one shape. Blocks begin at any token
of a text, in drafting and in training. In training the share of blocks that read the answer is constant, and
the loss of token probabilities is EAGLE's. Compiled forwards cannot add two-way blocks to a
tree, so that the head runs eagerly while it drafts.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.block_drafter import BlockDrafter
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.grow import grow
from outpace.models.heads.falcon.kind import FalconModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2412.12639", family="trained heads")
def falcon(
    target: Target,
    *,
    head: FalconModel,
    tree: Literal["dynamic", "chain"] = "dynamic",
    depth: int = 8,
    width: int = 10,
    num_nodes: int = 59,
) -> Parts:
    """A tree of the most probable paths of a head that drafts two levels in each forward, verified by
    matching.

    Args:
        head: folder with a head of Falcon that was trained for the target
        tree: the most probable paths, or a chain drawn from the head, which is verified by rejection
        depth: longest path that is drafted; the head runs half as often
        width: paths extended per level of the tree, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
    """
    is_chain = tree == "chain"
    growth = grow if is_chain else partial(dynamic_tree, width=width, num_nodes=num_nodes)
    drafter = BlockDrafter(head, target.vocab, growth, sampled=is_chain)
    return Parts(target, drafter, Rejection(), Fixed(depth))
