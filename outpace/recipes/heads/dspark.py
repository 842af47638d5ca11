"""DSpark (Cheng et al. 2026): DFlash's block, whose tokens are drawn one after the other from logits that
the token before corrects, cut where its acceptance becomes unlikely.

New here: ExpectedAcceptance, which ends a draft by the head's own prediction. Reuses: FeatureDrafter,
MaskReader, grow, Rejection, Fixed, AdaptiveDepth. Exact at any temperature: each token is drawn from the
corrected distribution and carries it, and whether a token is drafted is decided before it is drawn.

The correction is a bias of low rank for each pair of tokens and costs no forward. Of the authors' three kinds
of it the first one, which depends on the token before alone, is supported. They cut blocks so that a server
generates most at its load, which is `adaptive` here: by the probability that a token is accepted with all
before it, and by measured times. Without it a probability is the limit; its default is our choice.
"""

from functools import partial

from outpace.controllers.adaptive_depth import AdaptiveDepth
from outpace.controllers.expected_acceptance import ExpectedAcceptance
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.drafters.model.mask_reader import MaskReader
from outpace.models.heads.dspark.kind import DSparkModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2607.05147", family="trained heads")
def dspark(
    target: Target, *, head: DSparkModel, depth: int = 15, confidence: float = 0.2, adaptive: bool = False
) -> Parts:
    """A chain from one forward of a head, each token given the one before, verified by rejection.

    Args:
        head: folder with a head of DSpark that was trained for the target
        depth: longest chain that is drafted, at most as many tokens as one block of the head drafts
        confidence: end a chain before a token that is expected to be accepted, with those before it, less
            often; 0: never
        adaptive: end chains in place of that where more tokens do not pay, by measured times too
    """
    levels = head.head.block_levels
    drafter = FeatureDrafter(
        head, target.vocab, grow, sampled=True, reader=partial(MaskReader, levels=levels)
    )
    depth = min(depth, levels)
    if confidence and not head.head.predicts_acceptance:
        raise ValueError("this head does not predict acceptance: draft whole blocks, with confidence 0")
    controller = ExpectedAcceptance(depth, confidence) if confidence else Fixed(depth)
    sizes = target.sizes, target.chain_sizes
    adapting = AdaptiveDepth(depth, *sizes, trims=True, levels_per_forward=levels)
    return Parts(target, drafter, Rejection(), adapting if adaptive else controller)
