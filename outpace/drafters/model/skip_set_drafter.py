"""A target without some of its sub-layers as drafter: each request has a skip set, which may change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from outpace.core.claim import Claim, Drawn
from outpace.core.contracts import Context, Draft, Drafter, Plan, Step, Want
from outpace.core.tree import TokenTree
from outpace.drafters.compose.rows import context_of_rows, joined_drafts, plan_of_rows
from outpace.models.skip_set import SkipSet

MAX_DRAFTERS = 16  # of skip sets that were used last


class SkipSets(Protocol):
    """Chooses which layers or sub-layers (the skip set) the target leaves out when it drafts for a request.
    The choice may follow from committed tokens and from what the target computed for them, not from the draft
    tokens of the step."""

    want: Want
    learns_across_rows: bool  # the choice depends on other requests

    def of(self, slot: int) -> SkipSet | None:
        """What is left out in the next draft of the request in this slot; None: it gets no draft."""
        ...

    def observe(self, step: Step) -> None: ...
    def release(self, slots: Sequence[int]) -> None: ...


class SkipSetDrafter:
    """Implementation of core.contracts.Drafter: each row is drafted by the target without the skip set that
    `skip_sets` names for its request. Rows with the same set are drafted together, in one forward per level.
    """

    drafts_across_rows = False

    def __init__(self, make: Callable[[SkipSet], Drafter], skip_sets: SkipSets, *, sampled: bool) -> None:
        """`make`: skip set -> a drafter on the target's KV cache; `sampled`: whether these draw tokens."""
        self._make, self._skip_sets = make, skip_sets
        self.want, self.learns_across_rows = skip_sets.want, skip_sets.learns_across_rows
        self.claims: tuple[type[Claim], ...] = (Drawn,) if sampled else ()
        self._drafters: dict[SkipSet, Drafter] = {}  # last the one used last
        self._active: set[int] = set()  # slots of requests that have not ended

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        self._active.update(ctx.slots)
        groups: dict[SkipSet | None, list[int]] = {}
        for row, (slot, depth) in enumerate(zip(ctx.slots, plan.depth, strict=True)):
            groups.setdefault(self._skip_sets.of(slot) if depth else None, []).append(row)
        drafts = [self._draft(ctx, plan, skip_set, rows) for skip_set, rows in groups.items()]
        return joined_drafts(drafts, list(groups.values()))

    def _draft(self, ctx: Context, plan: Plan, skip_set: SkipSet | None, rows: Sequence[int]) -> Draft:
        if skip_set is None:
            return Draft(TokenTree.roots(ctx.roots[list(rows)]))
        drafter = self._drafters.pop(skip_set, None) or self._make(skip_set)
        self._drafters[skip_set] = drafter
        if len(self._drafters) > MAX_DRAFTERS:
            del self._drafters[next(iter(self._drafters))]
        if len(rows) == len(ctx.slots):
            return drafter.propose(ctx, plan)
        return drafter.propose(context_of_rows(ctx, rows), plan_of_rows(plan, rows))

    def observe(self, step: Step) -> None:
        self._active.update(step.ctx.slots)
        self._skip_sets.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self._skip_sets.release(slots)
        for drafter in self._drafters.values():
            drafter.release(slots)
        self._active.difference_update(slots)
        if not self._active:
            self._drafters.clear()
