"""One draft length for the whole batch, as long as verifying the drafts costs next to nothing (Wang et al.
2025)."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.controllers.idle_compute import IdleCompute
from outpace.controllers.step_cost import StepCost
from outpace.core.context import Context
from outpace.core.contracts import Plan, Step, Want


class IdleLength:
    """Implementation of core.contracts.Controller: chains of one length in all rows, the number of tokens
    that `IdleCompute` finds for so many rows, compared with a step without drafts; 0 to `depth`.

    Branches of a problem and draft tokens compete for the same arithmetic: with more branches drafts are
    shorter, and as branches end they get longer. Drafting time does not count here: whoever gives `depth`
    has measured with it.
    """

    want = Want()
    plans_across_rows = True

    def __init__(
        self,
        depth: int,
        *,
        tolerance: float,
        sizes: Sequence[int] = (),
        chain_sizes: Sequence[int] | None = None,
    ) -> None:
        """`tolerance`: share by which a step may take longer than without drafts. `sizes`, `chain_sizes`: as
        in core.contracts.Target. ValueError for a depth below 0."""
        self._depth = depth
        self._idle = IdleCompute(depth, StepCost(sizes, chain_sizes), least=0, tolerance=tolerance)

    def plan(self, ctx: Context) -> Plan:
        limits = [min(self._depth, limit) for limit in ctx.max_draft_depth]
        if ctx.unread is not None:  # a draft would delay the first token after a prompt
            limits = [0 if len(unread) else limit for limit, unread in zip(limits, ctx.unread, strict=True)]
        if not any(limits):
            return Plan(tuple(limits))
        length = self._idle.num_tokens(len(limits), sum(ctx.committed))
        return Plan(tuple([min(length, limit) for limit in limits]))

    def observe(self, step: Step) -> None:
        self._idle.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: what was learned is about the machine."""
