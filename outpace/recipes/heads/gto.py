"""GTO (Hu et al. 2025): EAGLE-3's head, trained further by how much of its draft trees is accepted.

New here: nothing; the method is the training (`outpace train gto`). Reuses: FeatureDrafter, dynamic_tree,
Match, Fixed. Exact at any temperature: the tokens are chosen by probability, carry no claim and are verified
by matching. Draft with the depth, width and number of nodes of the trees that the head was trained with
(settings `trees.`), which by default are these.
"""

from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.eagle3.kind import Eagle3Model
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2509.22134", family="trained heads")
def gto(target: Target, *, head: Eagle3Model, depth: int = 8, width: int = 10, num_nodes: int = 59) -> Parts:
    """A tree of the most probable paths of a head that learned from its trees, verified by matching.

    Args:
        head: folder with a head that `outpace train gto` made for the target
        depth: longest path that is drafted; the head runs as often
        width: paths extended per level, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
    """
    growth = partial(dynamic_tree, width=width, num_nodes=num_nodes)
    return Parts(target, FeatureDrafter(head, target.vocab, growth, sampled=False), Match(), Fixed(depth))
