"""A drafter that sees only the rows for which drafts are planned."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Plan, Step
from outpace.drafters.compose.rows import draft_of_some


class PlannedRows:
    """Implementation of core.contracts.Drafter: another drafter, which proposes nothing for rows of planned
    depth 0 and does no work for them. A draft model reads their texts when drafts are planned for them."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.want = drafter.want
        self.claims: tuple[type[Claim], ...] = drafter.claims
        self.learns_across_rows = drafter.learns_across_rows
        self.drafts_across_rows = drafter.drafts_across_rows

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        planned = [row for row, depth in enumerate(plan.depth) if depth > 0]
        return draft_of_some(self._drafter.propose, ctx, plan, planned)

    def observe(self, step: Step) -> None:
        self._drafter.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self._drafter.release(slots)
