"""Draft as deep as pays: the depths that maximise the expected number of generated tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy

from outpace.controllers.acceptance_rates import AcceptanceRates
from outpace.controllers.draft_choices import DraftChoices
from outpace.controllers.step_cost import StepCost
from outpace.controllers.token_acceptance import TokenAcceptance
from outpace.core.context import Context
from outpace.core.contracts import Forest, Frontier, Plan, Shape, Step, Want
from outpace.cost.linear_cost import Numbers

FIRST_DEPTHS = (1.0, 0.5, 0.25, 1.0)  # shares of the largest depth in the first steps
MIN_GAIN = 1.02  # least predicted ratio to plain decoding of a step with drafts
CATCH_UP_STEPS = 32  # most steps over which the time is spread in which a draft model reads missed tokens
HOLD_STEPS = 4  # steps for which a choice holds while the rows are the same: choosing takes a third of a ms
LEAST_SECONDS = 1e-9  # of a step: predicted times are 0 before anything was measured
LEVEL_STEPS = 32  # steps over which the number of tokens of a level is averaged
PROBE_SHARE = 0.01  # share of the time that may be lost with drafts that are made to learn whether they pay


class AdaptiveDepth:
    """Implementation of core.contracts.Controller with the goodput of SmartSpec (Liu et al. 2024): drafts of
    at most `max_depth` tokens, of a length per row, such that the expected number of tokens that a step
    generates, divided by its predicted time, is largest.

    Row i generates 1 + a + a^2 + ... + a^k tokens in expectation, with its acceptance rate a and its depth k.
    A draft is a chain, or a tree of `width` chains below the root: then one of the w first tokens is accepted
    with probability 1 - (1 - a)^w instead of a. Rows share a forward, so tokens are added to the drafts in
    the order of their probability of being reached. In the first steps depths are fixed, and a step is plain
    if no plain step with this number of rows was measured lately: drafts are compared with measured ones.

    A draft model reads the tokens that it has missed before it drafts. That time is spread over the steps
    that gain by it: of the steps that the request still needs, at most CATCH_UP_STEPS, the share of the last
    steps in which drafts would have paid had it read everything. The time in which the target reads
    prompts is left out: it is spent with and without drafts, which would look cheap beside it.

    The depths of a step follow from earlier steps alone, not from tokens drawn in it. With `trims` they only
    tell which rows draft. A path then goes on, at most to `max_depth`, while the tokens that it is expected
    to add are more than the plan's speed generates in the same time; their probability follows from the draft
    probabilities of the path's tokens. This is decided before the next token is drawn, and no token is
    dropped, so both are exact.
    """

    want = Want()
    plans_across_rows = True

    def __init__(
        self,
        max_depth: int,
        sizes: Sequence[int] = (),
        chain_sizes: Sequence[int] | None = None,
        *,
        width: int = 1,
        trims: bool = False,
        num_models: int = 1,
        levels_per_forward: int = 1,
    ) -> None:
        """`sizes`, `chain_sizes`: as in core.contracts.Target. `num_models`: draft models that propose a
        token each at every level, one of which is continued: a level costs `num_models` forwards, and is
        accepted if one of its tokens is. `levels_per_forward`: levels that one forward of the drafter gives,
        which then reads as many tokens for each row; further levels of these cost their verification alone.
        ValueError for a depth or width below 1."""
        if max_depth < 1:
            raise ValueError(f"depth is {max_depth}; use 1 or more, or autoregressive for no drafts")
        if width < 1:
            raise ValueError(f"width is {width}; use 1 for chains or a larger number for trees")
        self._max_depth, self._width, self._trims = max_depth, width, trims
        self._levels_per_forward = levels_per_forward
        self._num_models, self._level_tokens = num_models, 1.0  # mean number of different tokens of a level
        self._shape = Shape.branching((width, *[1] * (max_depth - 1))) if width > 1 else None
        self._rates, self._tokens = AcceptanceRates(), TokenAcceptance()
        self._cost = StepCost(sizes, chain_sizes if width == 1 else None)
        self._num_plans = 0
        self._planned: dict[int, int] = {}  # slot -> depth planned last
        self._read: dict[int, int] = {}  # slot -> number of tokens that the draft model has read
        self._choice: list[int] = []  # depths chosen last
        self._choice_slots: tuple[int, ...] = ()  # their rows
        self._hold = 0  # steps for which that choice still holds
        self._pays = True  # whether drafts would have paid in the last step if no tokens had been missed
        self._share_paid = 1.0  # average of that over about the last CATCH_UP_STEPS steps
        self._plain_seconds = 0.0  # predicted time of the plain steps since drafts were last made to learn
        self._speed: float | None = None  # predicted tokens per second of that choice; None: not known yet
        self._ctx: Context | None = None  # of the step that is planned
        self._drafted = 0  # draft tokens of that step so far

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
        if self._trims and self._speed is not None:  # how deep is decided while drafting
            depths = [limit if depth else 0 for depth, limit in zip(depths, limits, strict=True)]
        self._planned |= zip(ctx.slots, depths, strict=True)
        self._ctx, self._drafted = ctx, self._width * sum(map(bool, depths))
        return Plan(tuple(depths), self._shape, stop=self._ends if self._trims else None)

    def _ends(self, frontier: Frontier) -> list[bool]:
        """Which paths of the draft get no further token, given the draft probabilities of their tokens."""
        rows, paths = frontier.rows, frontier.paths
        ctx, level = self._ctx, len(paths[0])
        assert ctx is not None
        if self._speed is None:
            return [False] * len(rows)
        slots = [ctx.slots[row] for row in rows]
        rates = numpy.array([self._rates.rate(slot) for slot in slots])
        accepted = numpy.array(
            [
                self._tokens.path(path, rate, greedy=ctx.sampling[row].greedy)
                for row, path, rate in zip(rows, paths, rates.tolist(), strict=True)
            ]
        )
        limits = [self._planned[slot] - level for slot in slots]
        # probability that the path and one more token are accepted: the drafter's own prediction if it makes
        # one, else that of the path times the rate at which this request's draft tokens were accepted so far
        reached = accepted * rates if frontier.survival is None else numpy.array(frontier.survival)
        more = DraftChoices(limits, _reached(reached, rates, limits), numpy.ones(len(rows)))
        drafting = numpy.array([float(sum(self._planned[slot] > 0 for slot in ctx.slots))])
        now = self._seconds(ctx, numpy.array([float(level)]), numpy.array([float(self._drafted)]), drafting)
        then = self._seconds(ctx, level + more.levels, self._drafted + more.drafted, drafting)
        gained = more.tokens - len(rows) - self._speed * (then - now)
        best = divmod(int(gained.argmax()), gained.shape[1])
        ends = [True] * len(rows)
        if gained[best] > 0:
            ends = [depth == 0 for depth in more.depths(*best)]
        self._drafted += ends.count(False)
        return ends

    def _seconds(self, ctx: Context, levels: Numbers, drafted: Numbers, drafting: Numbers) -> Numbers:
        """Predicted seconds of this step, by the numbers of levels, draft tokens and rows with drafts."""
        unread = 0 if ctx.unread is None else sum(map(len, ctx.unread))
        forwards = numpy.ceil(levels / self._levels_per_forward) * self._num_models
        drafted = drafted * self._level_tokens
        seconds = self._cost.seconds(len(ctx.slots), sum(ctx.committed), unread, forwards, drafted)
        if self._levels_per_forward == 1:  # the drafter reads as many tokens as it drafts
            return seconds
        return seconds + self._cost.reading(forwards * self._levels_per_forward * drafting - drafted)

    def _best(self, ctx: Context, limits: Sequence[int]) -> list[int]:
        """The depths with the most expected tokens per second."""
        self._share_paid += (self._pays - self._share_paid) / CATCH_UP_STEPS
        if not self._hold or ctx.slots != self._choice_slots:
            reads = ctx.unread is not None and any(map(len, ctx.unread))
            # Draft tokens cost the target nothing where they take the place of padding, of which forwards
            # that read prompts have much. The next may have none, so such a choice holds for one step.
            self._choice_slots, self._hold = ctx.slots, 1 if reads else HOLD_STEPS
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
        first = 1 - (1 - rates) ** self._width
        choices = DraftChoices(limits, _reached(first, rates, limits), shares, self._width)
        tokens = choices.tokens
        plain = self._cost.plain_seconds(rows, context)
        drafting = choices.sum_over_drafted_rows(numpy.ones(rows))
        seconds = self._seconds(ctx, choices.levels, choices.drafted, drafting)
        if unread:
            seconds -= self._cost.plain_seconds(rows, context, unread) - plain  # reading the prompts
        seconds = numpy.maximum(seconds, LEAST_SECONDS)
        self._pays = bool((tokens / seconds).max() * plain > MIN_GAIN * rows)

        missed = numpy.array(self._missed(ctx))
        steps_left = numpy.array(ctx.max_draft_depth) * (1 - rates)
        spread = numpy.maximum(1, self._share_paid * numpy.minimum(CATCH_UP_STEPS, steps_left))
        catch_up = self._cost.reading(choices.sum_over_drafted_rows(missed / spread))
        speeds = tokens / (seconds + catch_up)
        best = divmod(int(speeds.argmax()), speeds.shape[1])
        self._speed = float(max(speeds[best], rows / max(plain, LEAST_SECONDS)))
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
        drafted, read_by_draft, drafting = 0, 0, 0
        for row, slot in enumerate(ctx.slots):
            if not step.generated[row]:
                continue
            num_drafted, planned = len(forest.nodes[row]) - 1, self._planned.get(slot, 0)
            if planned:
                accepted = forest.depths[step.verdict.leaf[row]]
                tested = _num_tested(forest, step.verdict.leaf[row])
                if self._num_models > 1 and num_drafted:
                    levels = forest.depths[forest.nodes[row][-1]]  # fewer than planned where the text ends
                    tested = accepted + (accepted < levels)  # below a side branch no level is drafted
                    self._level_tokens += (num_drafted / levels - self._level_tokens) / LEVEL_STEPS
                expected = num_drafted if self._trims else self._width * planned
                self._rates.record(slot, max(1, expected), num_drafted, tested, accepted)
                read_by_draft += missed[row]
                drafting += 1
                # accepted tokens stay in the draft model's KV cache
                self._read[slot] = ctx.committed[row] + len(step.generated[row])
            else:
                self._rates.skip(slot)
            drafted += num_drafted
        if self._trims:
            self._tokens.learn(step)
        reads = ctx.unread is not None and any(len(unread) for unread in ctx.unread)
        if "score" in step.seconds:
            in_blocks = step.draft.forwards * self._levels_per_forward * drafting
            read_by_draft += drafted if self._levels_per_forward == 1 else in_blocks
            self._cost.record_drafting(step, read_by_draft)
            if not reads and all(step.generated):
                self._cost.record(step, drafted)

    def release(self, slots: Sequence[int]) -> None:
        self._rates.release(slots)
        self._hold = 0  # the slots may get other requests
        self._ctx = None  # it refers to the KV cache, whose memory would not be freed
        for slot in slots:
            self._planned.pop(slot, None)
            self._read.pop(slot, None)


def _reached(first: Numbers, rates: Numbers, limits: Sequence[int]) -> Numbers:  # (B,) -> (B, K)
    """Probability that a token is accepted at each depth up to the largest limit: `first` at the first depth,
    then `rates` if the one before was."""
    return first[:, None] * rates[:, None] ** numpy.arange(max(limits))


def _num_tested(forest: Forest, leaf: int) -> int:
    """Number of draft tokens tested on the path that ends with this accepted node: of siblings those up to
    the accepted one, and all below the leaf."""
    path = forest.path(leaf)
    before = sum(forest.children[node].index(child) + 1 for node, child in pairwise(path))
    return before + len(forest.children[leaf])
