"""Block verification (Sun et al. 2024): a drafted chain is verified as a block, not token by token.

New here: nothing. Reuses: DraftModel, Block, Fixed, Confidence. Exact at any temperature. Its expected number
of accepted tokens is at least that of token-by-token rejection: a token whose p is below q can be compensated
by its neighbours. It needs no further forward, only one more pass over p and q.
"""

from outpace.controllers.confidence import Confidence
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.block import Block


@recipe(paper="arXiv:2403.10444", family="exact verification")
def block_verification(
    target: Target, *, draft: Target, depth: int = 8, confidence_threshold: float = 0.0
) -> Parts:
    """A draft model's chain, accepted or rejected by block verification.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        depth: tokens drafted per step
        confidence_threshold: stop drafting after a token whose draft probability is below this; 0 never stops
    """
    controller = Confidence(depth, confidence_threshold) if confidence_threshold else Fixed(depth)
    return Parts(target, DraftModel(draft), Block(), controller)
