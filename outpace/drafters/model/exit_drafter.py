"""Several early exits of a target as drafters, of which the plan names one for each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outpace.core.claim import Claim, Drawn
from outpace.core.contracts import Context, Draft, Drafter, Plan, Step, Want
from outpace.core.tree import TokenTree
from outpace.drafters.compose.rows import context_of_rows, joined_drafts, plan_of_rows


class ExitDrafter:
    """Implementation of core.contracts.Drafter: `Plan.drafter` is the number of layers that draft a row. The
    drafter of an exit is made when it is first chosen: a compiled target is compiled for each."""

    want = Want()
    claims: tuple[type[Claim], ...] = (Drawn,)
    learns_across_rows = drafts_across_rows = False

    def __init__(self, make: Callable[[int], Drafter]) -> None:
        """`make`: number of layers -> a drafter on the target's KV cache."""
        self._make = make
        self._drafters: dict[int, Drafter] = {}  # by number of layers

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        assert plan.drafter is not None
        groups: dict[int, list[int]] = {}
        for row, (exit_layer, depth) in enumerate(zip(plan.drafter, plan.depth, strict=True)):
            groups.setdefault(exit_layer if depth else 0, []).append(row)
        drafts = [self._draft(ctx, plan, exit_layer, rows) for exit_layer, rows in groups.items()]
        return joined_drafts(drafts, list(groups.values()))

    def _draft(self, ctx: Context, plan: Plan, exit_layer: int, rows: Sequence[int]) -> Draft:
        if not exit_layer:
            return Draft(TokenTree.roots(ctx.roots[list(rows)]))
        if exit_layer not in self._drafters:
            self._drafters[exit_layer] = self._make(exit_layer)
        drafter = self._drafters[exit_layer]
        if len(rows) == len(ctx.slots):
            return drafter.propose(ctx, plan)
        return drafter.propose(context_of_rows(ctx, rows), plan_of_rows(plan, rows))

    def observe(self, step: Step) -> None:
        """Does nothing: drafters on the target's KV cache have no state of a text."""

    def release(self, slots: Sequence[int]) -> None:
        for drafter in self._drafters.values():
            drafter.release(slots)
