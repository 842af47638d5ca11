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

from __future__ import annotations

from collections.abc import Sequence

import numpy

from outpace.controllers.acceptance_rates import AcceptanceRates
from outpace.controllers.fixed import Fixed
from outpace.controllers.idle_compute import FIRST_SHARES, LEAST_SECONDS, PROBE, IdleCompute
from outpace.controllers.step_cost import StepCost
from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Step, Target, Want, recipe
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


CLOSE = 1.02  # predicted speeds that differ by less are taken to be equal: then the longest draft is made


class IdleLength:
    """Implementation of core.contracts.Controller: chains of one length in all rows, the number of tokens
    that `IdleCompute` finds for their number, compared with a step without drafts; 0 to `depth`.

    Branches of a problem and draft tokens compete for the same arithmetic: with more branches drafts are
    shorter, and as branches end they get longer. Of the lengths up to that one, the longest is taken whose
    predicted speed is that of the best: a row generates 1 + a + a^2 + ... + a^k tokens in expectation, with
    its acceptance rate a and the length k, in the time of drafting and verifying. Where no draft is worth its
    time, one step in PROBE drafts one token, so that a change is seen.
    """

    want = Want()
    plans_across_rows = True

    def __init__(
        self,
        depth: int,
        *,
        tolerance: float,
        sizes: Sequence[int] = (),
        chain_sizes: Sequence[int] | None = None,
    ) -> None:
        """`tolerance`: share by which a step may take longer than without drafts. `sizes`, `chain_sizes`: as
        in core.contracts.Target. ValueError for a depth below 0."""
        self._depth = depth
        self._cost, self._rates = StepCost(sizes, chain_sizes), AcceptanceRates()
        self._idle = IdleCompute(depth, self._cost, least=0, tolerance=tolerance)
        self._num_plans = 0
        self._planned: dict[int, int] = {}  # slot -> length planned last
        self._read: dict[int, int] = {}  # slot -> number of tokens that the draft model has read

    def plan(self, ctx: Context) -> Plan:
        limits = [min(self._depth, limit) for limit in ctx.max_draft_depth]
        if ctx.unread is not None:  # a draft would delay the first token after a prompt
            limits = [0 if len(unread) else limit for limit, unread in zip(limits, ctx.unread, strict=True)]
        length = 0
        if any(limits):
            length = self._idle.num_tokens(len(limits), sum(ctx.committed))
            if self._num_plans >= len(FIRST_SHARES):
                length = self._worthwhile(ctx, length)
            self._num_plans += 1
        depths = [min(length, limit) for limit in limits]
        self._planned |= zip(ctx.slots, depths, strict=True)
        return Plan(tuple(depths))

    def _worthwhile(self, ctx: Context, longest: int) -> int:
        """The longest draft, of at most `longest` tokens, than which no other is predicted to be faster."""
        rows, context, lengths = len(ctx.slots), sum(ctx.committed), numpy.arange(longest + 1.0)
        rates = numpy.array([[self._rates.rate(slot)] for slot in ctx.slots])
        shares = numpy.array([[self._rates.share_drafted(slot)] for slot in ctx.slots])
        tokens = (1 + shares * (numpy.cumsum(rates**lengths, axis=1) - 1)).sum(0)
        seconds = self._cost.seconds(rows, context, 0, lengths, shares.sum() * lengths)
        speeds = tokens / numpy.maximum(seconds, LEAST_SECONDS)
        length = int(numpy.flatnonzero(CLOSE * speeds >= speeds.max())[-1])
        return length or (1 if longest and self._num_plans % PROBE == 0 else 0)

    def observe(self, step: Step) -> None:
        ctx, forest = step.ctx, step.draft.tree.forest
        read = 0
        for row, slot in enumerate(ctx.slots):
            if not step.generated[row]:
                continue
            if planned := self._planned.get(slot, 0):
                drafted, accepted = len(forest.nodes[row]) - 1, forest.depths[step.verdict.leaf[row]]
                tested = accepted + (accepted < drafted)
                self._rates.record(slot, planned, drafted, tested, accepted)
                read += drafted + ctx.committed[row] - self._read.get(slot, 1)
                # accepted tokens stay in the draft model's KV cache
                self._read[slot] = ctx.committed[row] + len(step.generated[row])
            else:
                self._rates.skip(slot)
        self._cost.record_drafting(step, read)
        self._idle.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self._rates.release(slots)
        for slot in slots:
            self._planned.pop(slot, None)
            self._read.pop(slot, None)
