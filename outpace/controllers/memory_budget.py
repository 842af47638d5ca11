"""Drafts as large as a memory budget permits, shared over the rows of a batch (Yildirim and Chen 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from outpace.controllers.footprint import ModelDrafter, StepMemory
from outpace.controllers.least_memory import LeastMemory
from outpace.core.context import Context
from outpace.core.contracts import Plan, PrefixCache, Shape, Step, Want

RESERVE = 0.05  # part of the budget for what is not estimated, such as the structures of trees


class MemoryBudget:
    """Implementation of core.contracts.Controller: every row drafts the levels of `shape` for which the
    estimated memory of the step stays within `memory` bytes.

    Levels are added one at a time, the one with the largest gain per byte first. The gain is the probability
    that a token at that level is accepted: the row's acceptance rate so far to the power of the level. If not
    even plain decoding fits beside the draft model's KV cache, that cache is emptied. With `least`, drafts
    that fit are made smaller while that costs little speed.
    """

    want = Want()
    plans_across_rows = True

    def __init__(
        self,
        shape: Shape,
        memory: int,
        step_memory: StepMemory,
        drafter: ModelDrafter,
        least: LeastMemory | None = None,
    ) -> None:
        if memory < 1:
            raise ValueError(f"memory is {memory}; give the number of bytes for KV caches and logits")
        self._shape, self._memory = shape, memory
        self._step_memory, self._drafter, self._least = step_memory, drafter, least
        self._rates: dict[int, tuple[int, int]] = {}  # slot -> tokens accepted, tokens tested

    def plan(self, ctx: Context) -> Plan:
        limits = [min(self._shape.depth, limit) for limit in ctx.max_draft_depth]
        depths = self._largest(ctx, limits)
        if isinstance(ctx.cache, PrefixCache):
            self._evict(ctx.cache, ctx, depths)
        if self._least is not None and any(depths):
            rates = [self._rate(ctx, row) for row in range(len(depths))]
            depths = self._least.reduced(ctx, limits, depths, rates, lambda *each: self._gain(ctx, *each))
        return Plan(tuple(depths), self._shape)

    def _evict(self, cache: PrefixCache, ctx: Context, depths: Sequence[int]) -> None:
        """Leave to the entries that a server retains for later requests what this step does not need."""
        needed = self._step_memory.of(ctx, depths)
        spare = max(0, int(self._memory * (1 - RESERVE)) - needed.total)
        cache.limit(needed.target_kv + spare, by=type(self).__name__)

    def _largest(self, ctx: Context, limits: list[int]) -> list[int]:
        """The largest depths that fit."""
        if self._fits(ctx, limits):
            return limits
        depths = [0] * len(limits)
        if not self._fits(ctx, depths):
            self._drafter.forget(ctx.slots)
            return depths
        queue = [(-self._gain(ctx, row, 1), row) for row, limit in enumerate(limits) if limit]
        heapify(queue)
        while queue:
            _, row = heappop(queue)
            depths[row] += 1
            if not self._fits(ctx, depths):
                depths[row] -= 1  # deeper levels of this row need more
            elif depths[row] < limits[row]:
                heappush(queue, (-self._gain(ctx, row, depths[row] + 1), row))
        return depths

    def observe(self, step: Step) -> None:
        forest = step.draft.tree.forest
        sampled = (n for n, params in zip(forest.nodes, step.ctx.sampling, strict=True) if not params.greedy)
        ends = (length + len(nodes) for length, nodes in zip(step.ctx.committed, forest.nodes, strict=True))
        self._step_memory.scored(len(forest), sum(map(len, sampled)), max(ends))
        if self._least is not None:
            self._least.observe(step)
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
        return self._rate(ctx, row) ** level / self._step_memory.level_bytes(ctx, row, level)

    def _rate(self, ctx: Context, row: int) -> float:
        """Probability that a level of the row's draft is accepted if the one above it was."""
        accepted, tested = self._rates.get(ctx.slots[row], (0, 0))
        return (accepted + 1) / (tested + 2)  # one of two before anything is known
