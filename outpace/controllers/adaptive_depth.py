"""Draft as deep as pays: the depths that maximise the expected number of generated tokens per second."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from outpace.controllers.acceptance_rates import AcceptanceRates
from outpace.controllers.draft_choices import DraftChoices
from outpace.controllers.step_cost import StepCost
from outpace.core.context import Context
from outpace.core.contracts import Plan, Step, Want

FIRST_DEPTHS = (1.0, 0.5, 0.25, 1.0)  # shares of the largest depth in the first steps
MIN_GAIN = 1.02  # least predicted ratio to plain decoding of a step with drafts
CATCH_UP_STEPS = 32  # most steps over which the time is spread in which a draft model reads missed tokens
HOLD_STEPS = 4  # steps for which a choice holds while the rows are the same: choosing takes a third of a ms
LEAST_SECONDS = 1e-9  # of a step: predicted times are 0 before anything was measured
PROBE_SHARE = 0.01  # share of the time that may be lost with drafts that are made to learn whether they pay


class AdaptiveDepth:
    """Implementation of core.contracts.Controller with the goodput of SmartSpec (Liu et al. 2024): chains of
    at most `max_depth` tokens, of a length per row, such that the expected number of tokens that a step
    generates, divided by its predicted time, is largest.

    Row i generates 1 + a + a^2 + ... + a^k tokens in expectation, with its acceptance rate a and its depth k.
    Rows share a forward, so tokens are added to the drafts in the order of their probability of being
    reached. In the first steps depths are fixed, and a step is plain if no plain step of so many rows was
    measured of late, so that drafts are compared with what was measured.

    A draft model reads the tokens that it has missed before it drafts. That time is spread over the steps
    that gain by it: a share of CATCH_UP_STEPS, namely that of the last steps in which drafts would have paid
    had it read everything, and not more than the request still needs. The time in which the target reads
    prompts is left out: it is spent with and without drafts, which would look cheap beside it.

    The depths of a step follow from earlier steps alone, not from tokens drawn in it: outputs stay exact.
    """

    want = Want()
    plans_across_rows = True

    def __init__(self, max_depth: int, sizes: Sequence[int] = ()) -> None:
        """`sizes`: those to which the target's forwards are padded. ValueError for a depth below 1."""
        if max_depth < 1:
            raise ValueError(f"depth is {max_depth}; use 1 or more, or autoregressive for no drafts")
        self._max_depth = max_depth
        self._rates, self._cost = AcceptanceRates(), StepCost(sizes)
        self._num_plans = 0
        self._planned: dict[int, int] = {}  # slot -> depth planned last
        self._read: dict[int, int] = {}  # slot -> number of tokens that the draft model has read
        self._choice: list[int] = []  # depths chosen last
        self._choice_slots: tuple[int, ...] = ()  # their rows
        self._hold = 0  # steps for which that choice still holds
        self._pays = True  # whether drafts would have paid in the last step if no tokens had been missed
        self._share_paid = 1.0  # average of that over about the last CATCH_UP_STEPS steps
        self._plain_seconds = 0.0  # predicted time of the plain steps since drafts were last made to learn

    def plan(self, ctx: Context) -> Plan:
        limits = [min(self._max_depth, limit) for limit in ctx.max_draft_depth]
        if ctx.unread is not None:  # a draft would delay the first token after a prompt
            limits = [0 if len(unread) else limit for limit, unread in zip(limits, ctx.unread, strict=True)]
        depths = limits
        if any(limits):
            if self._num_plans < len(FIRST_DEPTHS):
                most = round(FIRST_DEPTHS[self._num_plans] * self._max_depth)
                depths = [min(most, limit) for limit in limits]
            else:
                depths = self._best(ctx, limits)
            self._num_plans += 1
        self._planned |= zip(ctx.slots, depths, strict=True)
        return Plan(tuple(depths))

    def _best(self, ctx: Context, limits: Sequence[int]) -> list[int]:
        """The depths with the most expected tokens per second."""
        self._share_paid += (self._pays - self._share_paid) / CATCH_UP_STEPS
        if not self._hold or ctx.slots != self._choice_slots:
            self._choice_slots, self._hold = ctx.slots, HOLD_STEPS
            self._choice = self._choose(ctx, limits)
        self._hold -= 1
        return [min(depth, limit) for depth, limit in zip(self._choice, limits, strict=True)]

    def _choose(self, ctx: Context, limits: Sequence[int]) -> list[int]:
        rows, context = len(limits), sum(ctx.committed)
        unread = 0 if ctx.unread is None else sum(map(len, ctx.unread))
        self._cost.update()
        if not unread and not self._cost.knows(rows):
            self._hold = 1
            return [0] * rows  # a plain step, to measure it
        rates = numpy.array([self._rates.rate(slot) for slot in ctx.slots])
        shares = numpy.array([self._rates.share_drafted(slot) for slot in ctx.slots])
        choices = DraftChoices(limits, rates, shares)
        tokens = choices.tokens
        plain = self._cost.plain_seconds(rows, context)
        seconds = self._cost.seconds(rows, context, unread, choices.forwards, choices.drafted)
        if unread:
            seconds -= self._cost.plain_seconds(rows, context, unread) - plain  # reading the prompts
        seconds = numpy.maximum(seconds, LEAST_SECONDS)
        self._pays = bool((tokens / seconds).max() * plain > MIN_GAIN * rows)

        missed = numpy.array(self._missed(ctx))
        steps_left = numpy.array(ctx.max_draft_depth) * (1 - rates)
        spread = numpy.maximum(1, numpy.minimum(CATCH_UP_STEPS * self._share_paid, steps_left))
        catch_up = self._cost.reading(choices.sum_over_drafted_rows(missed / spread))
        speeds = tokens / (seconds + catch_up)
        best = divmod(int(speeds.argmax()), speeds.shape[1])
        if speeds[best] * plain > MIN_GAIN * rows:
            return choices.depths(*best)
        at_once = self._cost.reading(choices.sum_over_drafted_rows(missed))
        lost = float(seconds[best] + at_once[best] - tokens[best] * plain / rows)
        return choices.depths(*best) if self._is_probe(plain, lost) else [0] * rows

    def _is_probe(self, plain: float, loss: float) -> bool:
        """Whether drafts are made although plain steps, of `plain` seconds, are predicted to be faster: if
        the `loss`, in seconds, does not matter beside the time since that was done last."""
        if loss <= PROBE_SHARE * self._plain_seconds:
            self._plain_seconds, self._hold = 0.0, 1
            return True
        self._plain_seconds += HOLD_STEPS * plain
        return False

    def _missed(self, ctx: Context) -> list[int]:
        """Per row the number of tokens that the draft model has not read, apart from the root."""
        return [
            committed - self._read.get(slot, 1)
            for slot, committed in zip(ctx.slots, ctx.committed, strict=True)
        ]

    def observe(self, step: Step) -> None:
        ctx, forest = step.ctx, step.draft.tree.forest
        missed = self._missed(ctx)
        drafted, read_by_draft = 0, 0
        for row, slot in enumerate(ctx.slots):
            if not step.generated[row]:
                continue
            num_drafted, planned = len(forest.nodes[row]) - 1, self._planned.get(slot, 0)
            if planned:
                accepted = forest.depths[step.verdict.leaf[row]]
                self._rates.record(slot, planned, num_drafted, accepted)
                read_by_draft += missed[row]
                # accepted tokens stay in the draft model's KV cache
                self._read[slot] = ctx.committed[row] + len(step.generated[row])
            else:
                self._rates.skip(slot)
            drafted += num_drafted
        reads = ctx.unread is not None and any(len(unread) for unread in ctx.unread)
        if not reads and all(step.generated) and "score" in step.seconds:
            self._cost.record(step, drafted, read_by_draft)

    def release(self, slots: Sequence[int]) -> None:
        self._rates.release(slots)
        self._hold = 0  # the slots may get other requests
        for slot in slots:
            self._planned.pop(slot, None)
            self._read.pop(slot, None)
