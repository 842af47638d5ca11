"""Jakiro (Huang et al. 2025): EAGLE-2's tree from a head with two experts, with one forward fewer; and
Jakiro*, EAGLE's static tree, whose siblings are drawn from one expert each.

New here: nothing. Reuses: FeatureDrafter, TailReader, ExpertsReader, SHAPE, dynamic_tree, grow, grow_apart,
Rejection, Fixed. Exact at any temperature: the dynamic tree's tokens are chosen by probability and carry no
claim; a drawn chain carries its distributions, of which the last one depends on the tokens of all levels but
the last two. Siblings of the static tree carry the distribution of the expert that drew them, and equal
tokens of two experts are two nodes.

The last forward gives two levels: the next token from the weighted sum of the experts, and the one after it
from their weighted difference, whatever the token between. Drafts of fewer tokens than `depth`, as at the end
of a text, have a forward for each.

In the static tree the experts take turns, the one with the larger weight first, and each draws without
replacement. At temperature 0 its tokens are the most probable ones of the weighted sum. Any head of Jakiro
can draft it; those of the paper's Jakiro*, whose experts have no gate, have one output alone:
`outpace train jakiro --set head.contrast=false` makes them. Deeper nodes read the weighted sum at their
parents, on which heads are trained. The authors' code goes on from the expert with the larger weight, and
draws from the logits of both experts in one softmax.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.eagle_tree import SHAPE
from outpace.drafters.model.experts_apart import ExpertsReader, grow_apart
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
    tree: Literal["dynamic", "static", "chain"] = "dynamic",
    depth: int = 6,
    width: int = 10,
    num_nodes: int = 59,
) -> Parts:
    """Drafts of a head with two experts: a tree of the most probable paths, whose last two levels come from
    one forward, or a static tree whose siblings are drawn from one expert each.

    Args:
        head: folder with a head of Jakiro that was trained for the target
        tree: the most probable paths; EAGLE's tree of 25 tokens (Jakiro*) or a chain, which are drawn and
            verified by rejection
        depth: longest path, except in EAGLE's tree; a head with a second output runs once less
        width: paths extended per level of the tree, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
    """
    if tree == "static":
        drafter = FeatureDrafter(head, target.vocab, grow_apart, sampled=True, reader=ExpertsReader)
        return Parts(target, drafter, Rejection(), Fixed(SHAPE))
    is_chain = tree == "chain"
    growth = grow if is_chain else partial(dynamic_tree, width=width, num_nodes=num_nodes)
    reader = partial(TailReader, depth=depth)
    drafter = FeatureDrafter(head, target.vocab, growth, sampled=is_chain, reader=reader)
    return Parts(target, drafter, Rejection(), Fixed(depth))
