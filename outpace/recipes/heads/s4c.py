"""S4C (He et al. 2025): EAGLE's layer drafts the first token, and one light head each of the others.

New here: nothing. Reuses: PositionDrafter behind FeatureDrafter, dynamic_tree, grow, Rejection, Fixed. Exact
at any temperature: the tree's tokens are chosen by probability and carry no claim; a drawn chain carries the
heads' distributions.

How the heads are made is our reading of the abstract. Each head reads the output of the one before and the
token chosen after that, so that neighbouring tokens fit one another, and the tree grows level by level as
EAGLE-2's. Of a step's tree the accepted tokens stay: the target's hidden states at them go to EAGLE's layer,
which does not read the text anew. Candidates of rejected branches are not kept for later trees.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.grow import grow
from outpace.drafters.model.position_drafter import position_drafter
from outpace.models.heads.s4c.kind import S4CModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2506.14158", family="trained heads")
def s4c(
    target: Target,
    *,
    head: S4CModel,
    tree: Literal["dynamic", "chain"] = "dynamic",
    depth: int = 5,
    width: int = 4,
    num_nodes: int = 31,
) -> Parts:
    """A tree of the most probable paths of a decoder layer and light heads after it, verified by matching.

    Args:
        head: folder with heads of S4C that were trained for the target
        tree: the most probable paths, or a chain drawn from the heads, which is verified by rejection
        depth: longest path that is drafted; at most the number of heads
        width: paths extended per level of the tree, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
    """
    is_chain = tree == "chain"
    growth = grow if is_chain else partial(dynamic_tree, width=width, num_nodes=num_nodes)
    drafter = position_drafter(head, target.vocab, growth, sampled=is_chain)
    return Parts(target, drafter, Rejection(), Fixed(depth))
