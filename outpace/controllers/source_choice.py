"""In each row a looked-up draft or one of a draft model, whichever is expected to generate more per second.

Letters: K tokens of the longest draft of the model, N of the longest looked-up draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from operator import mul
from typing import NamedTuple

import numpy

from outpace.controllers.acceptance_rates import AcceptanceRates
from outpace.controllers.match_rates import MatchRates
from outpace.controllers.step_cost import StepCost
from outpace.core.context import Context, longest_draft
from outpace.core.contracts import Found, LookUp, Plan, Step, Want

# Lengths of the draft model's first nine drafts, in tokens, limited to the method's `depth`. Drafts of
# several lengths are timed because the time of a draft is fitted as a fixed part plus a part per draft token.
# Most have five tokens: compiled targets verify drafts of one to five tokens in a forward padded to six, so a
# shorter draft would not make verification faster.
FIRST_DEPTHS = (5, 5, 4, 5, 5, 3, 5, 5, 4)
TRY_AFTER = 8  # steps without a draft of the model after which one may be tried
EXPLORING = 0.02  # share of the tokens that such drafts may be expected to lose
HOLD_STEPS = 32  # steps for which predicted times hold while the rows are the same
REST_AFTER = 8  # steps without a looked-up token after which only one step in LOOK_EVERY looks tokens up
LOOK_EVERY = 4
# One draft of the model in PROBE_EVERY is a token longer or shorter than the best length, to measure its
# time, if at least PROBED_SPEED of the best length's tokens per second are expected of it.
PROBE_EVERY, PROBED_SPEED = 16, 0.8
CATCH_UP_STEPS = 8  # steps over which the time is spread in which a draft model reads missed tokens
LEAST_SECONDS = 1e-9  # of a step: predicted times are 0 before anything was measured


NOTHING: Found = (0, ())
Size = tuple[int, int]  # looked-up tokens, and tokens of the draft model: one of them is 0


@dataclass(frozen=True)
class RowOptions:
    """What is expected of one row. Plain floats: a few numbers per step, for which calls of numpy take
    longer."""

    looked_up: Sequence[float]  # tokens generated with 0, 1, 2, ... looked-up tokens
    drafted: Sequence[float]  # tokens generated with 0, 1, 2, ... tokens of the draft model
    read: float  # tokens that a draft model reads before it drafts, as far as this step is charged with them

    def tokens(self, size: Size) -> float:
        """Expected number of tokens that this row generates in a step with a draft of `size`: (looked-up
        tokens, tokens of the draft model), one of which is 0."""
        return self.drafted[size[1]] if size[1] else self.looked_up[size[0]]


class Others(NamedTuple):
    """What the other rows of the batch do in the same step."""

    tokens: float  # generated, as expected
    nodes: int  # draft tokens
    read: float  # tokens read by the draft model
    depth: int  # of the longest draft of the draft model


class SourceChoice:
    """Implementation of core.contracts.Controller that chooses for each row whether its looked-up draft is
    verified, and how much of it, or how many tokens a draft model drafts: what maximises the expected number
    of tokens that the step generates, divided by its predicted time. In a batch both are those of all rows:
    one forward of the target verifies their drafts together, and a forward of the draft model that one row
    needs costs the others little. Rows are chosen for one after the other, given the rest, from a batch
    without drafts and from one in which the draft model drafts in every row; the faster of the two is kept.

    What is expected of a lookup follows from the length of its match (`MatchRates`), of the draft model from
    how often its tokens were accepted. In the first steps the draft model drafts, so that times are known,
    and where it has not drafted for a while it is tried again, as far as that costs a small share.

    Looking up costs a step of a small target a tenth of its time, for nothing where the text does not repeat:
    there it is done in one step of `LOOK_EVERY`.

    The choice follows from committed tokens, from earlier steps and from times, never from tokens that are
    drawn in the step.
    """

    want = Want()
    plans_across_rows = True

    def __init__(
        self,
        lookup_depth: int,
        depth: int,
        sizes: Sequence[int] = (),
        chain_sizes: Sequence[int] | None = None,
        *,
        max_length: int | None = None,
        levels_per_forward: int = 1,
    ) -> None:
        """`lookup_depth`, `depth`: longest drafts; `depth` is 0 if there is no draft model. `sizes`,
        `chain_sizes`: as in core.contracts.Target. `max_length`: most tokens of a text that the draft model
        reads. `levels_per_forward`: tokens that one forward of it drafts, for which it reads as many.
        ValueError for a lookup_depth below 1 or a negative depth."""
        if lookup_depth < 1:
            raise ValueError(f"lookup_depth is {lookup_depth}; use 1 or more")
        if depth < 0:
            raise ValueError(f"depth is {depth}; use 0 or more, 0 for no drafts of the model")
        self._lookup_depth, self._depth, self._max_length = lookup_depth, depth, max_length
        self._forwards = [-(-each // levels_per_forward) for each in range(depth + 1)]  # by draft tokens
        self._read_for = [each * levels_per_forward for each in self._forwards]  # tokens that they read
        self._rates, self._matches = AcceptanceRates(), MatchRates(lookup_depth)
        self._cost = StepCost(sizes, chain_sizes)
        self._num_drafts = self._num_chosen = self._hold = 0
        self._without = 0  # steps since a token was looked up and drafted
        # predicted seconds, of steps with these rows
        self._predicted_slots: tuple[int, ...] = ()
        self._verify_seconds: list[float] = []  # of a step by its draft tokens, without the draft model
        self._draft_seconds: list[float] = []  # (K + 1,) of the draft model by its longest draft
        self._token_seconds = 0.0  # of the draft model for a token that it reads
        self._read: dict[int, int] = {}  # slot -> number of tokens that the draft model has read
        self._unused: dict[int, int] = {}  # slot -> steps since the model has drafted
        self._generated = self._lost = 0.0  # tokens of all steps, and those that tried drafts were to lose
        self._ctx: Context | None = None  # of the step that is planned
        # slot -> what was looked up in that step, and how many tokens the draft model drafts
        self._planned: dict[int, tuple[Found, int]] = {}

    def plan(self, ctx: Context) -> Plan:
        longest = max(self._lookup_depth, self._depth)
        limits = [min(longest, limit) for limit in ctx.max_draft_depth]
        self._ctx = ctx
        self._planned.clear()
        return Plan(tuple(limits), choice=self._choose)

    def _choose(self, limits: Sequence[int], look_up: LookUp) -> list[tuple[int, int]]:
        """Per row how many of the looked-up tokens are drafted, and how many tokens the model drafts: one of
        the two is 0."""
        ctx = self._ctx
        assert ctx is not None
        rests = self._without >= REST_AFTER and self._without % LOOK_EVERY
        found = [NOTHING] * len(limits) if rests else look_up()
        depths = [min(self._depth, longest_draft(self._max_length, length)) for length in ctx.committed]
        if any(depths) and self._num_drafts < len(FIRST_DEPTHS):
            first = FIRST_DEPTHS[self._num_drafts]
            sizes = [(0, min(first, depth, limit)) for depth, limit in zip(depths, limits, strict=True)]
            self._num_drafts += any(limits)
        else:
            self._without += 1
            if not self._hold or ctx.slots != self._predicted_slots:
                self._predict(ctx)
            self._hold -= 1
            rows = zip(ctx.slots, found, limits, depths, self._missed(ctx), strict=True)
            sizes = self._sizes(ctx.slots, [self._options(*row) for row in rows])
        if any(looked_up for looked_up, _ in sizes):
            self._without = 0
        rows = zip(ctx.slots, found, limits, sizes, strict=True)
        self._planned |= {slot: (each, depth) for slot, each, limit, (_, depth) in rows if limit}
        return sizes

    def _options(self, slot: int, found: Found, limit: int, longest: int, missed: int) -> RowOptions:
        matched, following = found
        usable = min(len(following), limit)
        reached = self._matches.reached(slot, matched, usable) if usable else ()
        rates = repeat(self._rates.rate(slot), min(longest, limit))
        return RowOptions(
            list(accumulate(chain((1.0,), reached))),
            list(accumulate(chain((1.0,), accumulate(rates, mul)))),
            missed / CATCH_UP_STEPS,
        )

    def _sizes(self, slots: Sequence[int], rows: Sequence[RowOptions]) -> list[Size]:
        """The draft of each row."""
        sizes: list[Size] = [(0, 0)] * len(rows)
        if len(rows) > 1:
            starts = [sizes]
            if self._depth:
                starts.append([(0, len(row.drafted) - 1) for row in rows])
            sizes = max((self._improved(rows, start) for start in starts), key=lambda s: self._speed(rows, s))
        for index, (slot, row) in enumerate(zip(slots, rows, strict=True)):
            if len(row.looked_up) > 1 or len(row.drafted) > 1:
                sizes[index] = self._chosen(slot, row, self._others(rows, sizes, index))
        return sizes

    def _others(self, rows: Sequence[RowOptions], sizes: Sequence[Size], left_out: int = -1) -> Others:
        """What the rows but one do in a step with these drafts."""
        tokens, nodes, read, longest = 0.0, 0, 0.0, 0
        for index, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            if index != left_out:
                tokens += row.tokens(size)
                nodes += sum(size)
                if depth := size[1]:
                    read, longest = read + row.read + self._read_for[depth], max(longest, depth)
        return Others(tokens, nodes, read, longest)

    def _improved(self, rows: Sequence[RowOptions], sizes: Sequence[Size]) -> list[Size]:
        """The drafts after that of each row in turn was replaced by the best one beside those of the rest."""
        found = list(sizes)
        for index, row in enumerate(rows):
            lookups, drafts = self._speeds(row, self._others(rows, found, index))
            looked_up, depth = best(lookups), best(drafts)
            found[index] = (looked_up, 0) if lookups[looked_up] >= drafts[depth] else (0, depth)
        return found

    def _speed(self, rows: Sequence[RowOptions], sizes: Sequence[Size]) -> float:
        """Expected tokens per second of a step with these drafts."""
        tokens, nodes, read, depth = self._others(rows, sizes)
        draft = self._draft_seconds[depth] + self._token_seconds * read
        return tokens / (self._verify_seconds[nodes] + draft)

    def _speeds(self, row: RowOptions, rest: Others) -> tuple[list[float], list[float]]:
        """Expected tokens per second of the step, by the row's number of looked-up tokens, and by that of the
        draft model's tokens; 0 for none of these."""
        verify, draft, token = self._verify_seconds, self._draft_seconds, self._token_seconds
        seconds = draft[rest.depth] + token * rest.read
        lookups = [
            (rest.tokens + tokens) / (verify[rest.nodes + count] + seconds)
            for count, tokens in enumerate(row.looked_up)
        ]
        read = rest.read + row.read
        drafts = [
            (rest.tokens + row.drafted[depth])
            / (
                verify[rest.nodes + depth]
                + draft[max(depth, rest.depth)]
                + token * (read + self._read_for[depth])
            )
            for depth in range(1, len(row.drafted))
        ]
        return lookups, [0.0, *drafts]

    def _chosen(self, slot: int, row: RowOptions, rest: Others) -> Size:
        """The row's best draft beside those of the rest, or one that is made to learn."""
        lookups, drafts = self._speeds(row, rest)
        looked_up, depth = best(lookups), best(drafts)
        if not depth:
            return looked_up, 0
        ahead = lookups[looked_up] / drafts[depth] - 1
        if ahead >= 0 and not self._tries(slot, ahead * (rest.tokens + row.drafted[depth])):
            return looked_up, 0
        return 0, self._probed(depth, drafts)

    def _probed(self, depth: int, drafts: Sequence[float]) -> int:
        """`depth`, the best draft length; in one of PROBE_EVERY drafts a length one token longer or shorter.
        Else a length that looks slow, since it was measured while the machine was, would never be used and so
        never measured again. `drafts`: expected tokens per second by draft length."""
        self._num_chosen += 1
        if self._num_chosen % PROBE_EVERY:
            return depth
        other = depth + (1 if self._num_chosen % (2 * PROBE_EVERY) else -1)
        worth = 0 < other < len(drafts) and drafts[other] > PROBED_SPEED * drafts[depth]
        return other if worth else depth

    def _tries(self, slot: int, lost: float) -> bool:
        """Whether the draft model drafts once although `lost` fewer tokens are expected of it than of the
        lookup in that time. What is expected of it may have been measured long ago."""
        self._unused[slot] = self._unused.get(slot, 0) + 1
        if self._unused[slot] < TRY_AFTER or self._lost + lost > EXPLORING * self._generated:
            return False
        self._lost += lost
        return True

    def _predict(self, ctx: Context) -> None:
        """Predict the times of the next steps with these rows."""
        rows, context = len(ctx.slots), sum(ctx.committed)
        longest = max(self._lookup_depth, self._depth)
        self._predicted_slots, self._hold = ctx.slots, min(HOLD_STEPS, 1 + self._cost.num_steps)
        self._cost.update()
        nodes, forwards = numpy.arange(rows * longest + 1.0), numpy.array(self._forwards, float)
        seconds = self._cost.verifying_or_assumed(rows, context, nodes)
        self._verify_seconds = seconds.clip(LEAST_SECONDS).tolist()
        self._draft_seconds = self._cost.drafting(forwards, numpy.zeros(1), context).tolist()
        self._token_seconds = float(self._cost.reading(numpy.ones(1))[0])

    def _missed(self, ctx: Context) -> list[int]:
        """Per row the number of tokens that the draft model has not read, apart from the root."""
        rows = zip(ctx.slots, ctx.committed, strict=True)
        return [committed - self._read.get(slot, 1) for slot, committed in rows]

    def observe(self, step: Step) -> None:
        ctx, forest = step.ctx, step.draft.tree.forest
        missed = self._missed(ctx)
        read_by_draft = 0
        for row, slot in enumerate(ctx.slots):
            generated = step.generated[row]
            if not generated or slot not in self._planned:
                continue
            (matched, following), depth = self._planned[slot]
            if following:
                self._matches.record(slot, matched, following, generated)
            self._generated += len(generated)
            if depth:
                self._unused[slot] = 0
                accepted, drafted = forest.depths[step.verdict.leaf[row]], len(forest.nodes[row]) - 1
                self._rates.record(slot, depth, drafted, min(accepted + 1, drafted), accepted)
                read_by_draft += missed[row] + self._read_for[drafted]
                self._read[slot] = ctx.committed[row] + len(generated)
            else:
                self._rates.skip(slot)
        reads = ctx.unread is not None and any(map(len, ctx.unread))
        if "score" in step.seconds and self._planned:
            self._cost.record_drafting(step, read_by_draft)
            if not reads and all(step.generated):
                self._cost.record(step, len(step.draft.tree) - len(ctx.slots))

    def release(self, slots: Sequence[int]) -> None:
        self._rates.release(slots)
        self._matches.release(slots)
        self._without = 0  # the slots may get other requests
        self._ctx = None  # it refers to the KV cache, whose memory would not be freed
        for slot in slots:
            self._read.pop(slot, None)
            self._unused.pop(slot, None)


def best(speeds: Sequence[float]) -> int:
    """Index of the highest speed."""
    return speeds.index(max(speeds))
