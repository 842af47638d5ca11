"""How many draft tokens of each row are verified at about the cost of the fewest, by measured times.

A forward over few tokens waits for memory, and further tokens are computed meanwhile; from some number of
tokens on it takes longer with each. Rows of a batch share the tokens that cost nothing.
"""

from __future__ import annotations

import numpy

from outpace.controllers.step_cost import StepCost
from outpace.core.contracts import Step

# In the first steps nothing is known about times: step i has the i-th share of `most`, so that the times show
# what a draft token costs. The smallest draft is measured more often, as all others are compared with it.
FIRST_SHARES = (0.0, 0.3, 0.0, 0.2, 0.0, 0.1)
# Later one step in PROBE has another size, in turn larger than the choice by these factors, or the smallest:
# times between measured sizes are taken to be linear, and show a bound too early where they are flat first.
PROBE, LARGER = 16, (1.25, 1.25, 1.25, 0.0)
HOLD_STEPS = 8  # steps for which a choice holds while the number of rows is the same
LEAST_SECONDS = 1e-9  # of a step: predicted times are 0 before anything was measured
MAX_TOLERANCE = 10.0  # eleven times the seconds of the smallest draft: larger ones bound nothing


class IdleCompute:
    """The largest number m of draft tokens per row, from `least` to `most`, with

        t(m, B) <= (1 + tolerance) * t(least, B)

    where t(m, B) is the predicted time of a step in which B rows verify m draft tokens each, sampling and
    commits included and drafting not. A larger batch never gets more: m is at most what it is for any smaller
    number of rows that steps have had.
    """

    def __init__(self, most: int, cost: StepCost, *, least: int, tolerance: float) -> None:
        """ValueError for `most` below `least` and for a tolerance below 0 or above MAX_TOLERANCE."""
        if most < least:
            raise ValueError(f"the largest draft has {most} tokens: use {least} or more")
        if not 0 <= tolerance <= MAX_TOLERANCE:
            raise ValueError(
                f"tolerance is {tolerance}: use a share from 0 to {MAX_TOLERANCE:g}, such as 0.1"
            )
        self._most, self._least, self._tolerance, self._cost = most, least, tolerance, cost
        self._sizes = numpy.arange(least, most + 1.0)
        self._num_choices = 0
        self._rows_seen: set[int] = set()
        self._choice: tuple[int, int] | None = None  # number of rows and m of the choice that holds
        self._hold = 0  # steps for which it still holds

    def num_tokens(self, rows: int, context: int) -> int:
        """m of the next step, of `rows` rows with `context` committed tokens together."""
        number, self._num_choices = self._num_choices, self._num_choices + 1
        self._rows_seen.add(rows)
        if number < len(FIRST_SHARES):
            return max(self._least, round(FIRST_SHARES[number] * self._most))
        if self._hold == 0 or self._choice is None or self._choice[0] != rows:
            self._cost.update()
            smaller = [each for each in self._rows_seen if each <= rows]
            chosen = min(self._of(each, round(context / rows * each)) for each in smaller)
            self._choice, self._hold = (rows, chosen), HOLD_STEPS
        self._hold -= 1
        chosen = self._choice[1]
        if number % PROBE:
            return chosen
        factor = LARGER[number // PROBE % len(LARGER)]
        return min(self._most, max(chosen + 1, round(factor * chosen))) if factor else self._least

    def observe(self, step: Step) -> None:
        """Learn how long a step took, unless it read prompts or the clock was set meanwhile."""
        reads = step.ctx.unread is not None and any(len(unread) for unread in step.ctx.unread)
        if not reads and all(step.generated) and 0 < step.seconds.get("score", 0.0) < float("inf"):
            self._cost.record(step, len(step.draft.tree) - len(step.ctx.slots))

    def _of(self, rows: int, context: int) -> int:
        predicted = self._cost.verifying(rows, context, 0, rows * self._sizes)
        seconds = numpy.maximum(predicted, LEAST_SECONDS)
        return int(self._sizes[seconds <= (1 + self._tolerance) * seconds[0]][-1])
