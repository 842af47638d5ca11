"""Latency-aware test-time scaling (Wang et al. 2025): drafts get shorter the more samples a problem has.

New here: IdleLength, which gives all rows drafts of one length that falls with their number. Reuses:
DraftModel and Rejection, or NGram and Match without a draft model. Exact at any temperature: the length
follows from times and acceptance of earlier steps.

The method answers a problem by a majority vote of several samples (branches) and stops at a deadline, or once
the leading answer cannot be overtaken. `outpace vote` and `outpace.vote` do that, with this or any other
method; here is the decoding of the branches. They have seeds of their own, so that they are independent
samples, and share the KV entries of the prompt.

Branches and draft tokens share the arithmetic that a forward has left while it waits for memory. So at most
as many tokens are drafted per branch as a step verifies within `tolerance` of the time of one without drafts,
at most `depth`; more branches never get longer drafts, and when branches end the others' drafts may grow. Of
these lengths the longest is taken with which tokens come fastest, by the acceptance so far and the measured
times of drafting and verifying: none at all with a draft model that is rarely right or slow. In the first
steps lengths are fixed, so that times show what a token costs, and one step in 16 tries another length later.
The paper has no such numbers. With `--no-measured` the length is `depth` at any batch.

The number of branches and `depth` are chosen beforehand on problems with known answers, by
`outpace vote --calibrate`: accuracy at the deadline counts there, and measured time with drafting in it. The
paper leaves the drafter open; any will do, as in `outpace vote --method eagle3`.
"""

from outpace.controllers.fixed import Fixed
from outpace.controllers.idle_length import IdleLength
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.lookup.ngram import NGram
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2505.19634", family="control and routing")
def latency_aware_tts(
    target: Target,
    *,
    draft: Target | None = None,
    depth: int = 5,
    measured: bool = True,
    tolerance: float = 0.5,
    sampled: bool = True,
    max_ngram: int = 3,
) -> Parts:
    """Chains of a draft model or an n-gram lookup, of one length for all rows.

    Args:
        draft: model that drafts, with the same vocabulary as the target; without it, n-grams are looked up
        depth: most tokens drafted per step
        measured: draft fewer than depth tokens, or none, where more of them are not worth their time
        tolerance: share by which a step may take longer than one without drafts
        sampled: draw the draft tokens; false drafts the most probable ones
        max_ngram: tokens of the longest n-gram looked up, without a draft model
    """
    controller = (
        IdleLength(depth, tolerance=tolerance, sizes=target.sizes, chain_sizes=target.chain_sizes)
        if measured
        else Fixed(depth)
    )
    if draft is None:
        return Parts(target, NGram(max_ngram, allow_shorter=True), Match(), controller)
    return Parts(target, DraftModel(draft, sampled=sampled), Rejection(), controller)
