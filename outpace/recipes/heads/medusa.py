"""Medusa (Cai et al. 2024): heads on one hidden state of the target, each for one of the next positions.

New here: nothing. Reuses: PositionDrafter, grow, static_tree, Rejection, Fixed. Exact at any temperature: the
tree's tokens are the most probable ones by rank, without a claim; a drawn chain carries the heads'
distributions. This is Medusa-1 without typical acceptance, which changes the output. Medusa-2, which trains
the target together with the heads and so makes another model, is not built.

The heads do not see one another's tokens, so all nodes of a depth have the same candidates. The tree takes
the most probable ranks by the accuracies in the heads' configuration (`rank_accuracies`, one list per head);
if there are none, as in heads from elsewhere, by assumed ones that fall with rank and depth. `outpace train
medusa --head FOLDER --set steps=0` measures them and trains nothing. The paper's trees have 63 nodes, too.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.grow import grow
from outpace.drafters.model.position_drafter import position_drafter, static_tree
from outpace.models.heads.medusa.kind import MedusaModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2401.10774", family="trained heads")
def medusa(
    target: Target,
    *,
    head: MedusaModel,
    tree: Literal["static", "chain"] = "static",
    num_nodes: int = 63,
    depth: int = 5,
) -> Parts:
    """A tree of fixed shape from heads that each predict one of the next tokens, verified by matching.

    Args:
        head: folder with heads of Medusa that were trained for the target
        tree: the most probable ranks of each head, or a chain drawn from the heads, verified by rejection
        num_nodes: draft tokens of the tree
        depth: longest path that is drafted; at most the number of heads
    """
    is_chain = tree == "chain"
    drafter = position_drafter(head, target.vocab, partial(grow, sampled=is_chain), sampled=is_chain)
    draft = depth if is_chain else static_tree(head, num_nodes, depth)
    return Parts(target, drafter, Rejection(), Fixed(draft))
