"""Several methods for the same requests: in each row and step one of them drafts, the one that the plan
names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Step
from outpace.core.tree import TokenTree
from outpace.drafters.compose.combined import Combined
from outpace.drafters.compose.rows import draft_of_rows, joined_drafts, step_of_rows


class ArmsDrafter(Combined):
    """Implementation of core.contracts.Drafter made of several methods, the arms: `Plan.drafter` is the
    number of the arm that drafts a row, and the plan's depth the most that it may draft. Rows of depth 0 are
    not drafted by any.

    The arm's own controller plans its draft. All drafters observe every step, so that an arm that is chosen
    again knows the text; with `apart` those rows that they have drafted, as the controllers do. They see the
    times if these are all rows.

    The choice must follow from committed tokens, earlier steps, times and noise of its own: then q of the
    chosen arm is the distribution of its tokens, whatever the other arms would have drafted.
    """

    def __init__(self, arms: Sequence[Parts], *, apart: bool = False) -> None:
        """`arms`: methods for one target. Their verifiers are not used. `apart`: each request keeps its
        arm."""
        super().__init__(*[arm.drafter for arm in arms])
        self._arms, self._apart = tuple(arms), apart
        self._planned: dict[int, int] = {}  # slot -> the arm that drafts it in this step
        for arm in arms:
            self.want |= arm.controller.want
            self.learns_across_rows |= arm.controller.plans_across_rows

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        assert plan.drafter is not None
        groups: dict[int, list[int]] = {}
        for row, (arm, depth) in enumerate(zip(plan.drafter, plan.depth, strict=True)):
            if depth:
                groups.setdefault(arm, []).append(row)
        for slot in ctx.slots:  # of an attempt at this step that failed
            self._planned.pop(slot, None)
        self._planned |= {ctx.slots[row]: arm for arm, rows in groups.items() for row in rows}
        drafts = [draft_of_rows(self._arms[arm], ctx, rows, plan.depth) for arm, rows in groups.items()]
        rows = list(groups.values())
        if idle := [row for row, depth in enumerate(plan.depth) if not depth]:
            drafts.append(Draft(TokenTree.roots(ctx.roots[idle])))
            rows.append(idle)
        return joined_drafts(drafts, rows)

    def observe(self, step: Step) -> None:
        if not self._apart:
            super().observe(step)
        groups: dict[int, list[int]] = {}
        for row, slot in enumerate(step.ctx.slots):
            if slot in self._planned:
                groups.setdefault(self._planned[slot], []).append(row)
        self._planned = {}
        for arm, rows in groups.items():
            own = step
            if len(rows) < len(step.ctx.slots):  # the times are those of all rows, not of these
                own = replace(step_of_rows(step, rows), seconds={})
            if self._apart:
                self._arms[arm].drafter.observe(own)
            self._arms[arm].controller.observe(own)

    def release(self, slots: Sequence[int]) -> None:
        super().release(slots)
        for arm in self._arms:
            arm.controller.release(slots)
        for slot in slots:
            self._planned.pop(slot, None)
