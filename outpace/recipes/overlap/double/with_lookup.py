"""A drafter that drafts while the target works, and an n-gram lookup whose tokens the target reads."""

from __future__ import annotations

from outpace.core.context import Context
from outpace.core.contracts import Draft, DraftsAhead, Plan
from outpace.core.tree import TokenTree
from outpace.drafters.compose.combined import Combined


class WithLookup(Combined):
    """Implementation of core.contracts.DraftsAhead: the drafts of `drafter`. What `lookup` finds is for the
    target; its state of a request is released together with the drafter's."""

    drafts_ahead = True

    def __init__(self, drafter: DraftsAhead, lookup: DraftsAhead, depth: int) -> None:
        super().__init__(drafter, lookup)
        self._drafter, self._lookup, self._depth = drafter, lookup, depth

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        return self._drafter.propose(ctx, plan)

    def found(self, ctx: Context) -> TokenTree:
        """What follows each text where its end occurred before, at most `depth` tokens."""
        plan = Plan((self._depth,) * len(ctx.slots)).within(ctx.max_draft_depth)
        return self._lookup.propose(ctx, plan).tree
