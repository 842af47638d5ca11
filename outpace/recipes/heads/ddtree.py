"""DDTree (2026): DFlash's block of distributions gives a tree of the most probable paths in place of a chain.

New here: nothing. Reuses: FeatureDrafter, MaskReader, best_first, Match, Fixed.
Exact at any temperature: the tree's tokens are chosen by probability and carry no claim.

The head gives one distribution for each level, so a path's probability is a product over levels, and the most
probable paths are found without another forward. The number of nodes is our choice; the paper tries several.
"""

from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.best_first import best_first
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.mask_reader import MaskReader
from outpace.models.heads.dflash.kind import DFlashModel
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2604.12989", family="trained heads")
def ddtree(target: Target, *, head: DFlashModel, depth: int = 15, num_nodes: int = 31) -> Parts:
    """The most probable paths of a block that a head drafts in one forward, verified by matching.

    Args:
        head: folder with a head of DFlash that was trained for the target
        depth: longest path that is drafted, at most as many tokens as one block of the head drafts
        num_nodes: draft tokens of a step, those of the most probable paths
    """
    levels = head.head.block_levels
    reader = partial(MaskReader, levels=levels)
    growth = partial(best_first, num_nodes=num_nodes)
    drafter = FeatureDrafter(head, target.vocab, growth, sampled=False, reader=reader)
    return Parts(target, drafter, Match(), Fixed(min(depth, levels)))
