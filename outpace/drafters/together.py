"""Several drafters at once: their trees side by side below the same roots."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Plan, Step, Want


class Together:
    """core.contracts.Drafter: each of `drafters` follows the plan, and what they propose is merged."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        if not drafters:
            raise ValueError("give at least one drafter")
        self._drafters = tuple(drafters)
        self.want = Want()
        for drafter in drafters:
            self.want |= drafter.want
        self.claims: tuple[type[Claim], ...] = tuple({claim for drafter in drafters for claim in drafter.claims})

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        drafts = [self._drafters[0].propose(ctx, plan)]
        tree = drafts[0].tree
        for index, drafter in enumerate(self._drafters[1:], 1):
            drafts.append(drafter.propose(ctx.apart(index), plan))
            tree = tree.merge(drafts[-1].tree)
        return Draft(tree, sum(draft.forwards for draft in drafts), sum(draft.seconds for draft in drafts))

    def observe(self, step: Step) -> None:
        for drafter in self._drafters:
            drafter.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.release(slots)
