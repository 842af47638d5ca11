"""Seconds of a decoding step, by its numbers of rows and tokens, from the steps that were measured."""

from __future__ import annotations

from collections import deque
from statistics import median

import numpy
from numpy.typing import NDArray

from outpace.controllers.linear_cost import LinearCost, rounded
from outpace.core.contracts import Step

MIN_TIMES = 3  # recent forwards of one size without which it is unknown
RECENT = 512  # steps
MAX_TOKENS = 4096  # tokens of one forward; larger ones are taken to cost what this many do, relatively
GROUPS = numpy.array([rounded(size) for size in range(MAX_TOKENS + 1)])  # number of tokens -> its group

Numbers = NDArray[numpy.float64]  # of any shape


class StepCost:
    """The sum of three linear functions: of the target's forward (tokens computed, rows, and tokens in the KV
    cache), of the draft model's (forwards, tokens computed, and tokens in the KV cache of each forward), and
    of everything else (rows and draft tokens).

    Forwards are not quite linear: kernels change with the number of tokens. So the target's prediction is
    multiplied by what forwards of as many tokens and rows took, relative to it.
    """

    def __init__(self) -> None:
        self._target, self._draft, self._other = LinearCost(4), LinearCost(3), LinearCost(3)
        # rounded number of rows -> by group of numbers of tokens: measured over predicted seconds
        self._factors: dict[int, Numbers] = {}
        self._num_steps = 0
        # rounded numbers of rows and tokens -> steps that measured them last
        self._last: dict[tuple[int, int], deque[int]] = {}

    def record(self, step: Step, drafted: int, read_by_draft: int) -> None:
        """Add a step that read no prompts: numbers of draft tokens, and of committed tokens that the draft
        model read before it drafted."""
        rows, context = len(step.ctx.slots), sum(step.ctx.committed)
        seconds, draft = step.seconds, step.draft
        computed = rows + drafted
        self._num_steps += 1
        size = rounded(rows), rounded(computed)
        self._last.setdefault(size, deque(maxlen=MIN_TIMES)).append(self._num_steps)
        if self._target.record((1, computed, rows, context), seconds["score"]):
            self._correct()
        if draft.forwards:
            quantities = draft.forwards, drafted + read_by_draft, draft.forwards * context
            self._draft.record(quantities, draft.seconds)
        self._other.record((1, rows, drafted), sum(seconds.values()) - seconds["score"] - draft.seconds)

    def knows(self, rows: int) -> bool:
        """Whether steps of so many rows without drafts were measured a few times of late."""
        last = self._last.get((rounded(rows), rounded(rows)), ())
        return len(last) == MIN_TIMES and last[0] > self._num_steps - RECENT

    def seconds(
        self, rows: int, context: int, unread: int, forwards: Numbers, drafted: Numbers, missed: Numbers
    ) -> Numbers:
        """Predicted seconds of steps with `rows` rows, which have `context` tokens together and read `unread`
        tokens of prompts, for numbers of draft forwards, of draft tokens, and of committed tokens that the
        draft model reads before it drafts."""
        target, draft, other = (each.coefficients for each in (self._target, self._draft, self._other))
        computed = rows + unread + drafted
        seconds = target[0] + target[1] * computed + target[2] * rows + target[3] * context
        if (factors := self._factors.get(rounded(rows))) is not None:
            seconds *= factors[GROUPS[numpy.minimum(numpy.rint(computed).astype(int), MAX_TOKENS)]]
        seconds += draft[0] * forwards + draft[1] * (drafted + missed) + draft[2] * forwards * context
        return seconds + (other[0] + other[1] * rows + other[2] * drafted)

    def reading(self, tokens: float) -> float:
        """Predicted seconds in which the draft model reads so many committed tokens."""
        return float(self._draft.coefficients[1] * tokens)

    def _correct(self) -> None:
        ratios: dict[tuple[int, int], list[float]] = {}
        for (_, computed, rows, _), ratio in self._target.ratios():
            ratios.setdefault((rounded(rows), rounded(computed)), []).append(ratio)
        self._factors = {}
        for (rows, group), found in ratios.items():
            if group <= GROUPS[-1] and len(self._last[rows, group]) == MIN_TIMES:
                factors = self._factors.setdefault(rows, numpy.ones(int(GROUPS[-1]) + 1))
                factors[group] = median(found)
