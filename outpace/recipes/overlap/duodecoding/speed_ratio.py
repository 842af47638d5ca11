"""DuoDecoding's draft length (Lv et al. 2025): as many tokens as are drafted while the target reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import log
from statistics import median

from outpace.core.context import Context
from outpace.core.contracts import Plan, Step, Want

SIZES = (1, 2, 4, 6, 8, 12, 16, 24)  # tokens of a draft: numbers that can be divided in many ways
UNMEASURED = 12  # before times are known
NUM_TIMES = 32  # last steps whose times count
LEAST_TIMES = 3  # steps without which times are not known
LEAST_SECONDS = 1e-9


class SpeedRatio:
    """Implementation of core.contracts.Controller: drafts of the size whose logarithm is nearest to that of
    the target's time per forward over the draft model's, medians of recent steps; or of a fixed size. The
    first draft of a request has one token, so that no long draft delays the first token."""

    want = Want()

    def __init__(self, size: int | None) -> None:
        """`size`: tokens of a draft; None: by measured times. ValueError for a size below 1."""
        if size is not None and size < 1:
            raise ValueError(f"depth is {size}: give 1 or more, or none for a depth by measured times")
        self._size, self.plans_across_rows = size, size is None
        self._target, self._draft = deque[float](maxlen=NUM_TIMES), deque[float](maxlen=NUM_TIMES)

    @property
    def size(self) -> int:
        """Tokens of the next draft, but for the first of a request."""
        if self._size is not None:
            return self._size
        if min(len(self._target), len(self._draft)) < LEAST_TIMES:
            return UNMEASURED
        target, draft = (max(median(times), LEAST_SECONDS) for times in (self._target, self._draft))
        return min(SIZES, key=lambda size: abs(log(size) - log(target / draft)))

    def plan(self, ctx: Context) -> Plan:
        size, generated = self.size, zip(ctx.certain or ctx.committed, ctx.prompt_lengths, strict=True)
        return Plan(tuple([size if length > prompt else 1 for length, prompt in generated]))

    def observe(self, step: Step) -> None:
        if all(step.generated):  # no row read a part of its prompt
            self._target.append(step.seconds["score"])
        if step.draft.forwards:
            self._draft.append(float(step.draft.seconds) / step.draft.forwards)

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: times are those of the models."""
