"""Jakiro (Huang et al. 2025): EAGLE-2's tree from a head with two experts, with one forward fewer.

New here: nothing. Reuses: FeatureDrafter, TailReader, dynamic_tree, grow, Rejection, Fixed. Exact at any
temperature: the tree's tokens are chosen by probability and carry no claim; a drawn chain carries its
distributions, of which the last one depends on the tokens of all levels but the last two.

The last forward gives two levels: the next token from the weighted sum of the experts, and the one after it
from their weighted difference, whatever the token between. Drafts of fewer tokens than `depth`, as at the end
of a text, have a forward for each. The static trees that the authors call Jakiro*, whose siblings are drawn
from one expert each, are left out.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.drafters.model.tail_reader import TailReader
from outpace.models.heads.jakiro.kind import JakiroModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2502.06282", family="trained heads")
def jakiro(
    target: Target,
    *,
    head: JakiroModel,
    tree: Literal["dynamic", "chain"] = "dynamic",
    depth: int = 6,
    width: int = 10,
    num_nodes: int = 59,
) -> Parts:
    """A tree of the most probable paths of a head with two experts, which drafts two levels in its last
    forward, verified by matching.

    Args:
        head: folder with a head of Jakiro that was trained for the target
        tree: the most probable paths, or a chain drawn from the head, which is verified by rejection
        depth: longest path that is drafted; the head runs once less
        width: paths extended per level of the tree, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
    """
    is_chain = tree == "chain"
    growth = grow if is_chain else partial(dynamic_tree, width=width, num_nodes=num_nodes)
    reader = partial(TailReader, depth=depth)
    drafter = FeatureDrafter(head, target.vocab, growth, sampled=is_chain, reader=reader)
    return Parts(target, drafter, Rejection(), Fixed(depth))
