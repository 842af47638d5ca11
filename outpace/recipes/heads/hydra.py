"""Hydra (Ankner et al. 2024): Medusa's heads, but each also reads the tokens drafted before it.

New here: nothing. Reuses: PositionDrafter, FeatureDrafter, grow, static_tree, Rejection, Fixed. Exact at any
temperature: the tree's tokens are the most probable ones by rank, without a claim; a drawn chain carries the
heads' distributions.

Nodes of one depth below different parents have candidates of their own, so the tree is filled level by level.
With heads of Hydra++ a decoder layer with a KV cache follows the text, and its newest output takes the place
of the target's hidden state. The shape of the tree is chosen as for medusa, by accuracies that `outpace train
hydra` measures, with `--head FOLDER --set steps=0` without training, and else by assumed ones.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.grow import grow
from outpace.drafters.model.position_drafter import position_drafter, static_tree
from outpace.models.heads.hydra.kind import HydraModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2402.05109", family="trained heads")
def hydra(
    target: Target,
    *,
    head: HydraModel,
    tree: Literal["static", "chain"] = "static",
    num_nodes: int = 63,
    depth: int = 4,
) -> Parts:
    """A tree of fixed shape from heads that read the tokens on the path, verified by matching.

    Args:
        head: folder with heads of Hydra or Hydra++ that were trained for the target
        tree: the most probable ranks after each path, or a chain drawn from the heads, verified by rejection
        num_nodes: draft tokens of the tree
        depth: longest path that is drafted; at most the number of heads
    """
    is_chain = tree == "chain"
    drafter = position_drafter(head, target.vocab, partial(grow, sampled=is_chain), sampled=is_chain)
    draft = depth if is_chain else static_tree(head, num_nodes, depth)
    return Parts(target, drafter, Rejection(), Fixed(draft))
