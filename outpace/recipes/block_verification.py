"""Block verification (Sun et al. 2024): speculative sampling whose drafted tokens are accepted or refused as a block.

New here: nothing. Reuses: LM, Block, Fixed, Confidence. Exact at any temperature, and on average never shorter than
token by token: a token that p likes less than q does can be made up for by those around it. It takes no more forwards,
only a pass over p and q. `confidence` above 0 stops a draft after a token that the drafter believed in less than that.
"""

from outpace.controllers.confidence import Confidence
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.block import Block


@recipe(paper="arXiv:2403.10444", family="exact verification")
def block_verification(target: Target, *, draft: Target, depth: int = 8, confidence: float = 0.0) -> Parts:
    controller = Confidence(depth, confidence) if confidence else Fixed(depth)
    return Parts(target, DraftModel(draft), Block(), controller)
