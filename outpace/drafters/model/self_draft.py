"""A target's own layers as drafter."""

from __future__ import annotations

from outpace.core.contracts import Context, Draft, Drafter, Plan
from outpace.drafters.compose.planned_rows import PlannedRows


class SelfDraft(PlannedRows):
    """Implementation of core.contracts.Drafter: a drafter around a model on the target's KV cache.

    It proposes nothing in the step that reads the end of a text, whose entries the cache lacks, nor in the
    first step of a request: whether that step reads depends on how the prompt was divided, and what a request
    generates must not."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        rows = zip(plan.depth, ctx.committed, ctx.prompt_lengths, strict=True)
        depths = [depth if committed > prompt else 0 for depth, committed, prompt in rows]
        if ctx.unread is not None:
            pairs = zip(depths, ctx.unread, strict=True)
            depths = [0 if len(unread) else depth for depth, unread in pairs]
        return super().propose(ctx, plan.within(depths))
