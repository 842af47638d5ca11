"""Draft trees whose size follows the number of rows: as many nodes as are verified at no cost (Yan et al.
2025, Scylla)."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.controllers.idle_compute import IdleCompute
from outpace.controllers.step_cost import StepCost
from outpace.core.context import Context
from outpace.core.contracts import PathScores, Plan, Step, Want


class BatchTree:
    """Implementation of core.contracts.Controller for trees of the most probable paths, and of
    core.contracts.TreeSize for each of its plans.

    All rows have trees of m nodes, the number that `IdleCompute` finds for so many rows. Only paths that are
    among the m most probable so far are extended: what follows another one is less probable still. The tree
    is thus the same as if `width` paths had been extended, and fewer forwards of the head make it.

    Tokens of the tree are chosen, not drawn, so a size that depends on them leaves the output exact.
    """

    want = Want()
    plans_across_rows = True

    def __init__(self, depth: int, num_nodes: int, *, tolerance: float, sizes: Sequence[int] = ()) -> None:
        """`depth`, `num_nodes`: levels and draft tokens of the largest tree of one row. `tolerance`: share by
        which verification may take longer than that of one draft token per row. `sizes`: numbers of tokens to
        which compiled forwards of the target are padded. ValueError for a depth or number of nodes below
        1."""
        if min(depth, num_nodes) < 1:
            raise ValueError(f"depth is {depth} and num_nodes {num_nodes}; use 1 or more")
        self._depth = depth
        self._idle = IdleCompute(num_nodes, StepCost(sizes), least=1, tolerance=tolerance)
        self._num_nodes = num_nodes  # of each row's tree in the step that is planned

    def plan(self, ctx: Context) -> Plan:
        limits = [min(self._depth, limit) for limit in ctx.max_draft_depth]
        if ctx.unread is not None:  # a draft would delay the first token after a prompt
            limits = [0 if len(unread) else limit for limit, unread in zip(limits, ctx.unread, strict=True)]
        if any(limits):
            self._num_nodes = self._idle.num_tokens(len(limits), sum(ctx.committed))
        return Plan(tuple(limits), size=self)

    def keep(self, candidates: Sequence[PathScores], levels: int) -> list[int]:
        return [self._num_nodes] * len(candidates)

    def extend(
        self, candidates: Sequence[PathScores], newest: Sequence[PathScores], levels: int
    ) -> list[int]:
        least = [row[self._num_nodes - 1 : self._num_nodes] for row in candidates]
        return [
            int((new >= limit[0]).sum()) if len(limit) else len(new)
            for new, limit in zip(newest, least, strict=True)
        ]

    def observe(self, step: Step) -> None:
        self._idle.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: what was learned is about the machine."""
