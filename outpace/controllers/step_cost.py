"""Seconds of a decoding step, by its numbers of rows and tokens, from the steps that were measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy

from outpace.core.contracts import Step
from outpace.cost.linear_cost import LinearCost, Numbers, rounded
from outpace.cost.padding import padded

MIN_TIMES = 3  # recent forwards of one size without which it is unknown
NUM_TIMES = 15  # last forwards of one size that count
RECENT = 512  # steps
FRESH = 128  # last steps, whose forwards alone count if MIN_TIMES of them have the size in question
# Before forwards of two sizes were measured, the time of a forward over n tokens is assumed to grow as
# 1 + ASSUMED_GROWTH * n. Compiled models on a 2-core CPU had about 0.05 (113M parameters) and 0.07 (12M).
# Accelerators were not measured; there the time should grow more slowly.
ASSUMED_GROWTH = 0.04
MAX_TOKENS = 4096  # tokens of one forward; larger ones are taken to cost what this many do, relatively
GROUPS = numpy.array([rounded(size) for size in range(MAX_TOKENS + 1)])  # number of tokens -> its group


@dataclass(frozen=True)
class Forward:
    """A measured forward of the target."""

    at: int  # number of its step
    quantities: Sequence[float]  # as LinearCost takes them
    seconds: float


class MeasuredStep(NamedTuple):
    """What is kept of a step until the next update."""

    rows: int
    drafted: int  # draft tokens
    computed: int  # tokens that the target computed, padding included
    context: int  # tokens in the KV cache, of all rows
    target_seconds: float  # of the target's forward
    other_seconds: float  # of the rest of the step, without drafting


class StepCost:
    """The sum of three linear functions: of the target's forward (tokens computed, rows, and tokens in the KV
    cache), of drafting (once per draft, forwards, tokens computed, and tokens in the KV cache of each
    forward), and of everything else (rows and draft tokens).

    Forwards are not quite linear: kernels change with the number of tokens. So the target's prediction is
    multiplied by what the last forwards of as many tokens and rows took, relative to it. Padding counts as
    tokens.
    """

    def __init__(self, sizes: Sequence[int] = (), chain_sizes: Sequence[int] | None = None) -> None:
        """`sizes`, `chain_sizes`: as in core.contracts.Target; give `chain_sizes` if drafts are chains. Empty
        `sizes`: forwards are not padded."""
        self._sizes = numpy.array(sizes, dtype=float)
        self._row_sizes = self._sizes if chain_sizes is None else numpy.array(chain_sizes, dtype=float)
        self._target, self._draft, self._other = LinearCost(4), LinearCost(4), LinearCost(3)
        # rounded number of rows -> by group of numbers of tokens: measured over predicted seconds
        self._factors: dict[int, Numbers] = {}
        self.num_steps = 0  # steps that predictions follow
        # recorded since the last update: steps, and quantities and seconds of drafts
        self._new_steps = deque[MeasuredStep](maxlen=RECENT)
        self._new_drafts = deque[tuple[Sequence[float], float]](maxlen=RECENT)
        # rounded numbers of rows and tokens -> last forwards
        self._forwards: dict[tuple[int, int], deque[Forward]] = {}
        self._changed: set[tuple[int, int]] = set()  # sizes whose factors are to be computed anew

    def record(self, step: Step, drafted: int) -> None:
        """Record how long a step took, without the time of drafting; it counts from the next update on. The
        step read no prompts. `drafted`: number of its draft tokens, in all rows."""
        rows, seconds = len(step.ctx.slots), step.seconds
        target = seconds["score"]
        other = sum(seconds.values()) - target - float(step.draft.seconds)
        computed, context = step.scores.computed or rows + drafted, sum(step.ctx.committed)
        self._new_steps.append(MeasuredStep(rows, drafted, computed, context, target, other))

    def record_drafting(self, step: Step, read: int) -> None:
        """Record how long drafting took in a step. `read`: number of tokens in the forwards of the draft
        model: draft tokens, and committed tokens that were not in its KV cache yet."""
        if forwards := step.draft.forwards:
            quantities = 1, forwards, read, forwards * sum(step.ctx.committed)
            self._new_drafts.append((quantities, float(step.draft.seconds)))

    def _add(self, step: MeasuredStep) -> None:
        self.num_steps += 1
        quantities = 1, step.computed, step.rows, step.context
        size = rounded(step.rows), rounded(step.computed)
        forwards = self._forwards.setdefault(size, deque(maxlen=NUM_TIMES))
        forwards.append(Forward(self.num_steps, quantities, step.target_seconds))
        self._changed.add(size)
        self._target.record(quantities, step.target_seconds)
        self._other.record((1, step.rows, step.drafted), step.other_seconds)

    def update(self) -> None:
        """Let predictions follow the steps recorded so far. Controllers call this before they predict, which
        they do once in several steps; after every step it would cost a tenth of a millisecond each."""
        for step in self._new_steps:
            self._add(step)
        for quantities, seconds in self._new_drafts:
            self._draft.record(quantities, seconds)
        self._new_steps.clear()
        self._new_drafts.clear()
        self._draft.update()
        self._other.update()
        if self._target.update():
            self._changed.update(self._forwards)
        for rows, group in self._changed:
            forwards = self._forwards[rows, group]
            if group <= GROUPS[-1] and len(forwards) >= MIN_TIMES:
                fresh = [each for each in forwards if each.at > self.num_steps - FRESH]
                factors = self._factors.setdefault(rows, numpy.ones(int(GROUPS[-1]) + 1))
                used = fresh if len(fresh) >= MIN_TIMES else forwards
                predicted = numpy.array([each.quantities for each in used]) @ self._target.coefficients
                seconds = numpy.array([each.seconds for each in used])
                factors[group] = median((seconds / numpy.maximum(1e-9, predicted)).tolist())
        self._changed.clear()

    def knows(self, rows: int) -> bool:
        """Whether steps of `rows` rows without drafts were measured a few times lately."""
        sizes = self._row_sizes if rows == 1 else self._sizes
        plain = float(padded(numpy.array([float(rows)]), sizes)[0])
        forwards = self._forwards.get((rounded(rows), rounded(plain)))
        if forwards is None or len(forwards) < MIN_TIMES:
            return False
        return forwards[-MIN_TIMES].at > self.num_steps - RECENT

    def seconds(self, rows: int, context: int, unread: int, forwards: Numbers, drafted: Numbers) -> Numbers:
        """Predicted seconds of steps with `rows` rows, which have `context` tokens together and read `unread`
        tokens of prompts, for numbers of draft forwards and of draft tokens, as many of which the draft model
        reads."""
        return self.verifying(rows, context, unread, drafted) + self.drafting(forwards, drafted, context)

    def verifying(self, rows: int, context: int, unread: int, drafted: Numbers) -> Numbers:
        """Predicted seconds of steps without the draft model's forwards."""
        target, other = self._target.coefficients, self._other.coefficients
        sizes = self._row_sizes if rows == 1 else self._sizes
        computed = padded(rows + unread + drafted, sizes)
        seconds = target[0] + target[1] * computed + target[2] * rows + target[3] * context
        if (factors := self._factors.get(rounded(rows))) is not None:
            seconds *= factors[GROUPS[numpy.minimum(numpy.rint(computed).astype(int), MAX_TOKENS)]]
        return seconds + (other[0] + other[1] * rows + other[2] * drafted)

    def verifying_or_assumed(self, rows: int, context: int, drafted: Numbers) -> Numbers:
        """Like `verifying` if forwards of two sizes were measured a few times: from one size nothing follows
        for the others. Until then the time of a forward is assumed to grow slowly with its tokens; before
        any was measured, predictions are relative to a forward of no tokens."""
        known = [size for size, forwards in self._forwards.items() if len(forwards) >= MIN_TIMES]
        if len({tokens for _, tokens in known}) > 1:
            return self.verifying(rows, context, 0, drafted)
        measured = [each for forwards in self._forwards.values() for each in forwards]
        units = [each.seconds / (1 + ASSUMED_GROWTH * each.quantities[1]) for each in measured]
        sizes = self._row_sizes if rows == 1 else self._sizes
        return (median(units) if units else 1.0) * (1 + ASSUMED_GROWTH * padded(rows + drafted, sizes))

    def drafting(self, forwards: Numbers, tokens: Numbers, context: int) -> Numbers:
        """Predicted seconds of drafts, by their number of forwards and of tokens that these read in all."""
        draft = self._draft.coefficients
        return draft[0] * (forwards > 0) + (draft[1] + draft[3] * context) * forwards + draft[2] * tokens

    def plain_seconds(self, rows: int, context: int, unread: int = 0) -> float:
        """Predicted seconds of a step without drafts."""
        return float(self.seconds(rows, context, unread, numpy.zeros(1), numpy.zeros(1))[0])

    def reading(self, tokens: Numbers) -> Numbers:
        """Predicted seconds in which the draft model reads `tokens` committed tokens before it drafts."""
        return self._draft.coefficients[2] * tokens
