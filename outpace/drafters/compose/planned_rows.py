"""Drafters that see only the rows with planned drafts, one of them around the target's own layers."""

from __future__ import annotations

from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Plan
from outpace.drafters.compose.combined import Combined
from outpace.drafters.compose.rows import draft_of_some


class PlannedRows(Combined):
    """Implementation of core.contracts.Drafter: another drafter, which proposes nothing for rows of planned
    depth 0 and does no work for them. A draft model reads their texts when drafts are planned for them."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self._drafter = drafter

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        planned = [row for row, depth in enumerate(plan.depth) if depth > 0]
        return draft_of_some(self._drafter.propose, ctx, plan, planned)


class SelfDraft(PlannedRows):
    """Implementation of core.contracts.Drafter: a drafter around a model on the target's KV cache.

    It proposes nothing in the step that reads the end of a text, whose entries the cache lacks, nor in the
    first step of a request: whether that step reads depends on how the prompt was divided, and what a request
    generates must not."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        rows = zip(plan.depth, ctx.committed, ctx.prompt_lengths, strict=True)
        depths = [depth if committed > prompt else 0 for depth, committed, prompt in rows]
        if ctx.unread is not None:
            pairs = zip(depths, ctx.unread, strict=True)
            depths = [0 if len(unread) else depth for depth, unread in pairs]
        return super().propose(ctx, plan.within(depths))
