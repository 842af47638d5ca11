"""Drafts as large as a memory budget permits, shared over the rows of a batch (Yildirim and Chen 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from outpace.controllers.footprint import ModelDrafter, StepMemory
from outpace.core.context import Context
from outpace.core.contracts import Plan, Shape, Step, Want

RESERVE = 0.05  # part of the budget for what is not estimated, such as the structures of trees


class MemoryBudget:
    """Implementation of core.contracts.Controller: every row drafts the levels of `shape` for which the
    estimated memory of the step stays within `memory` bytes.

    Levels are added one at a time, the one with the largest gain per byte first. The gain is the probability
    that a token at that level is accepted: the row's acceptance rate so far to the power of the level. If not
    even plain decoding fits beside the draft model's KV cache, that cache is emptied.
    """

    want = Want()
    plans_across_rows = True

    def __init__(self, shape: Shape, memory: int, step_memory: StepMemory, drafter: ModelDrafter) -> None:
        if memory < 1:
            raise ValueError(f"memory is {memory}; give the number of bytes for KV caches and logits")
        self._shape, self._memory = shape, memory
        self._step_memory, self._drafter = step_memory, drafter
        self._rates: dict[int, tuple[int, int]] = {}  # slot -> tokens accepted, tokens tested

    def plan(self, ctx: Context) -> Plan:
        limits = [min(self._shape.depth, limit) for limit in ctx.max_draft_depth]
        if self._fits(ctx, limits):
            return Plan(tuple(limits), self._shape)
        depths = [0] * len(limits)
        if not self._fits(ctx, depths):
            self._drafter.forget(ctx.slots)
            return Plan(tuple(depths), self._shape)
        queue = [(-self._gain(ctx, row, 1), row) for row, limit in enumerate(limits) if limit]
        heapify(queue)
        while queue:
            _, row = heappop(queue)
            depths[row] += 1
            if not self._fits(ctx, depths):
                depths[row] -= 1  # deeper levels of this row need more
            elif depths[row] < limits[row]:
                heappush(queue, (-self._gain(ctx, row, depths[row] + 1), row))
        return Plan(tuple(depths), self._shape)

    def observe(self, step: Step) -> None:
        forest = step.draft.tree.forest
        sampled = (n for n, params in zip(forest.nodes, step.ctx.sampling, strict=True) if not params.greedy)
        ends = (length + len(nodes) for length, nodes in zip(step.ctx.committed, forest.nodes, strict=True))
        self._step_memory.scored(len(forest), sum(map(len, sampled)), max(ends))
        for row, slot in enumerate(step.ctx.slots):
            if step.generated[row]:
                leaf = step.verdict.leaf[row]
                accepted, tested = self._rates.get(slot, (0, 0))
                depth = forest.depths[leaf]
                self._rates[slot] = accepted + depth, tested + depth + bool(forest.children[leaf])

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._rates.pop(slot, None)

    def _fits(self, ctx: Context, depths: Sequence[int]) -> bool:
        return self._step_memory.of(ctx, depths).total <= self._memory * (1 - RESERVE)

    def _gain(self, ctx: Context, row: int, level: int) -> float:
        """Probability that a token at this level of the row's draft is accepted, per byte of that level."""
        accepted, tested = self._rates.get(ctx.slots[row], (0, 0))
        rate = (accepted + 1) / (tested + 2)  # one of two before anything is known
        return rate**level / self._step_memory.level_bytes(ctx, row, level)
