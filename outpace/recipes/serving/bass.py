"""BASS (Qian et al. 2024): batched speculative sampling with one draft length that follows acceptance.

New here: BatchLength. Reuses: DraftModel, Rejection. Exact at any temperature, for each row and for all rows
together: the length of a draft follows from steps before it, never from its own tokens.

All rows draft chains of the same length, in one forward of the draft model per token; one forward of the
target verifies them. Each row keeps the tokens it accepted, and its KV entries, whatever the others accepted,
and leaves the batch when it ends. After a step in which a row accepted its whole draft the length grows by
`increment`, at most to `max_depth`; otherwise it falls by a tenth (`divisor`), and by one more if it fell the
step before, but not below the most tokens that a row accepted.

The paper has two layouts of attention over rows of unequal length. Here the target's forwards determine it:
eager forwards call attention once per row, without padding (the paper's SPLIT); forwards recorded as CUDA
graphs call it once, with all rows padded to one length (PAD); OpenVINO's paged attention is one call without
padding. Linear layers process the tokens of all rows in one matrix; only CUDA graphs pad there.

Use it for batches of requests, such as several samples of a prompt. The length depends on all rows of the
batch: where tokens are drawn, a seed gives another text in another batch, from the same distribution;
`--no-sampled` gives each row the text that it gets alone. The length stays while requests join and leave and
starts at `depth` again once none is left, which the paper, with its fixed batches, does not say.

The paper's time budget belongs to its evaluation: it counts the samples of a problem that end within some
seconds, and takes the best of them. Nothing in drafting or verification depends on it. Rows leave the batch
when they end; what is not ended in time is cancelled by who asked for it (`Session.cancel`, a closed
connection to the server).
"""

from outpace.controllers.batch_length import BatchLength
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2404.15778", family="batching and serving")
def bass(
    target: Target,
    *,
    draft: Target,
    depth: int = 7,
    increment: int = 2,
    divisor: int = 10,
    max_depth: int = 32,
    sampled: bool = True,
) -> Parts:
    """A draft model's chains of one length for the whole batch, verified by rejection.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        depth: tokens drafted in the first step
        increment: tokens added to the length after a step in which a row accepted its whole draft
        divisor: other steps shorten the length by its part of this size, rounded up
        max_depth: maximum number of tokens drafted per step
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    controller = BatchLength(depth, increment=increment, divisor=divisor, max_depth=max_depth)
    return Parts(target, DraftModel(draft, sampled=sampled), Rejection(), controller)
