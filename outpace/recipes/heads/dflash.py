"""DFlash (Chen et al. 2026): a block of masks behind the text is filled by a few layers in one forward.

New here: nothing. Reuses: FeatureDrafter, MaskReader, grow, Rejection, Fixed or AdaptiveDepth.
Exact at any temperature: the tokens of a chain are drawn from distributions that depend on the text alone,
not on one another, and carry them; at temperature 0 the most probable ones are compared with the target's.

The block is read two ways: a mask attends to those behind it too. Before it, the layers have keys and values
of the target's hidden states at the text's tokens, and these are all that their KV cache keeps.
"""

from functools import partial

from outpace.controllers.adaptive_depth import AdaptiveDepth
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.drafters.model.mask_reader import MaskReader
from outpace.models.heads.dflash.kind import DFlashModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2602.06036", family="trained heads")
def dflash(target: Target, *, head: DFlashModel, depth: int = 15, adaptive: bool = False) -> Parts:
    """A chain that a head drafts in one forward, verified by rejection.

    Args:
        head: folder with a head of DFlash that was trained for the target
        depth: longest chain that is drafted, at most as many tokens as one block of the head drafts
        adaptive: depth is an upper bound: as long as pays by measured times and acceptance
    """
    levels = head.head.block_levels
    reader = partial(MaskReader, levels=levels)
    drafter = FeatureDrafter(head, target.vocab, grow, sampled=True, reader=reader)
    depth = min(depth, levels)
    sizes = target.sizes, target.chain_sizes
    adapting = AdaptiveDepth(depth, *sizes, trims=True, levels_per_forward=levels)
    return Parts(target, drafter, Rejection(), adapting if adaptive else Fixed(depth))
