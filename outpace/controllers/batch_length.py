"""One draft length for the whole batch, which follows the row with the most accepted tokens (Qian et al.
2024)."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.context import Context
from outpace.core.contracts import Plan, Step, Want


class BatchLength:
    """Implementation of core.contracts.Controller: chains of one length l in all rows.

    After a step in which some row accepted l tokens, l grows by `increment`, at most to `max_depth`. After
    any other step it falls by ceil(l / `divisor`), and by one more if it fell after the step before, but not
    below the most tokens that any row accepted, nor below 1.

    Rows that only read a part of their prompt do not count. Neither does a step in which no row drafted l
    tokens, since the rows' own limits cut all of its drafts. The length belongs to the batch: it stays while
    requests join and leave, and starts at `depth` again once no request is left.
    """

    want = Want()
    plans_across_rows = True

    def __init__(self, depth: int = 7, *, increment: int = 2, divisor: int = 10, max_depth: int = 32) -> None:
        if not 1 <= depth <= max_depth:
            raise ValueError(f"depth is {depth}; give at least 1 and at most max_depth, {max_depth}")
        if increment < 0 or divisor < 1:
            raise ValueError(f"increment is {increment} and divisor {divisor}; give at least 0 and 1")
        self._first, self._increment, self._divisor, self._max_depth = depth, increment, divisor, max_depth
        self._active: set[int] = set()  # slots of requests that have not ended
        self._depth, self._fell = depth, False

    def plan(self, ctx: Context) -> Plan:
        self._active.update(ctx.slots)
        return Plan((self._depth,) * len(ctx.slots))

    def observe(self, step: Step) -> None:
        forest = step.draft.tree.forest
        rows = [row for row, generated in enumerate(step.generated) if generated]
        drafted = max((forest.depths[forest.nodes[row][-1]] for row in rows), default=0)
        if drafted >= self._depth:
            self._adapt([forest.depths[step.verdict.leaf[row]] for row in rows])

    def release(self, slots: Sequence[int]) -> None:
        self._active.difference_update(slots)
        if not self._active:
            self._depth, self._fell = self._first, False

    def _adapt(self, accepted: Sequence[int]) -> None:
        """Change the length after a step with these numbers of accepted tokens, one per row."""
        depth = self._depth
        if max(accepted) >= depth:
            self._depth, self._fell = min(depth + self._increment, self._max_depth), False
        else:
            less = -(-depth // self._divisor) + self._fell
            self._depth, self._fell = max(1, *accepted, depth - less), True
