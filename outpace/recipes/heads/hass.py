"""HASS (Zhang et al. 2025): EAGLE's head, trained on its own outputs, drafts the tree of EAGLE-2.

New here: nothing; the method is the training (`outpace train hass`). Reuses: FeatureDrafter, dynamic_tree,
Match, Fixed. Exact at any temperature: the tokens are chosen by probability, carry no claim and are verified
by matching. The authors leave the top-k loss out in the first 40 of their 50 epochs: that is a run of its
own, with `head.top_k_weight=0`.
"""

from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.eagle.kind import EagleModel
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2408.15766", family="trained heads")
def hass(target: Target, *, head: EagleModel, depth: int = 6, width: int = 10, num_nodes: int = 59) -> Parts:
    """A tree of the most probable paths of a head that was trained on its own outputs, verified by matching.

    Args:
        head: folder with a head that `outpace train hass` made for the target
        depth: longest path that is drafted; the head runs as often
        width: paths extended per level, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
    """
    growth = partial(dynamic_tree, width=width, num_nodes=num_nodes)
    return Parts(target, FeatureDrafter(head, target.vocab, growth, sampled=False), Match(), Fixed(depth))
