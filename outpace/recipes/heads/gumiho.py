"""Gumiho (Li et al. 2025): two decoder layers draft the first two tokens one by one, then five MLPs as many
further ones at once.

New here: nothing. Reuses: FeatureDrafter, TailReader, dynamic_tree, grow, Rejection, Fixed. Exact at any
temperature: the tree's tokens are chosen by probability and carry no claim; a drawn chain carries its
distributions, of which the MLPs' depend on the first two tokens alone.

The authors' full tree attention, in which the target reads a token together with tokens of other branches, is
left out: it changes the target's distribution. Where they extend 14 paths by tokens of the layers and 35 by
those of the MLPs, here both have one `width`. The MLPs learn on outputs that the layers computed from their
own outputs, as in drafting, and their loss of token probabilities has one weight during the whole training.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.drafters.model.tail_reader import TailReader
from outpace.models.heads.gumiho.kind import GumihoModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2503.10135", family="trained heads")
def gumiho(
    target: Target,
    *,
    head: GumihoModel,
    tree: Literal["dynamic", "chain"] = "dynamic",
    depth: int = 7,
    width: int = 14,
    num_nodes: int = 63,
) -> Parts:
    """A tree of the most probable paths of a head whose first tokens are drafted in forwards and the others
    by MLPs at once, verified by matching.

    Args:
        head: folder with a head of Gumiho that was trained for the target
        tree: the most probable paths, or a chain drawn from the head, which is verified by rejection
        depth: longest path that is drafted; beyond two tokens and one for each MLP, the head runs more often
        width: paths extended per level of the tree, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
    """
    is_chain = tree == "chain"
    growth = grow if is_chain else partial(dynamic_tree, width=width, num_nodes=num_nodes)
    reader = partial(TailReader, depth=depth)
    drafter = FeatureDrafter(head, target.vocab, growth, sampled=is_chain, reader=reader)
    return Parts(target, drafter, Rejection(), Fixed(depth))
