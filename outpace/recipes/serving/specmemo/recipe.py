"""SpecMemo (Yildirim and Chen 2025): drafts as large as a budget of generation memory permits.

New here: MemoryBudget, StepMemory, LeastMemory. Reuses: DraftModel, Match. Exact at any temperature: the
tokens are the draft model's most probable ones and carry no claim, so no distributions of the draft need
memory, and a row's text under a seed is that of plain decoding, whatever the budget.

Before every step its memory is estimated: the KV caches of both models, as the caches report it for the
lengths of the rows, a slot that is copied when it grows, logits and probabilities of this and the last step,
the temporary tensors of a layer, and masks. Weights are not counted. Each row then drafts the levels of the
tree that fit: one level at a time, first where a token is most likely to be accepted per byte. If no level
fits, rows are decoded plainly; if plain decoding does not fit beside the draft model's KV cache, that is
emptied. The target's KV entries are never dropped: a budget below what plain decoding needs is exceeded.

The paper's lower bound, the least memory with which 96 % of the speed remain, is `--min-speed 0.96`: of the
drafts that fit, every step then takes the smallest whose predicted speed is at least this share of the best
speed without a budget, and none if plain decoding is fast enough. Speeds follow from acceptance and from
measured times; the first four steps with drafts try several depths. Only the size of drafts is searched: the
blocks in which KV caches grow are fixed, and the parts in which prompts are read follow from the budget.

For dense transformers models the estimate is higher than the memory allocated, up to three times as high. The
difference is largest at temperatures above 0, where probabilities are counted for all nodes at once. 5 % of
the budget stay free for what it leaves out, such as the structures of trees. Grammars and other processors of
logits are not counted. Both models read prompts in parts of 16 to 512 tokens, all rows together, whose
temporary tensors need at most a quarter of the budget. In a server, entries that are retained for later
requests have what a step leaves: they are evicted before drafts are cut.

Eager KV caches grow with the text, in blocks of 64 positions: entries are copied in up to eight pieces, of
which one has its old and its new memory at the same time. Other methods allocate a slot for its longest text
and 256 draft nodes. Compiled forwards have caches of their own: blocks from a pool on a CPU, and a fixed size
with CUDA graphs, where a budget limits little. In a server with several methods the caches are those of the
first, and all of them read prompts in its parts.

Use it where memory is short, as on small GPUs or beside other programs. With half of the memory that prompts
of 400 tokens take without a budget, the zoo's pair keeps about three quarters of its speed
(docs/results/memory.md). The paper leaves the tree, the
estimate and the division of the budget open; those here are ours. It also computes logits only on the paths
that are still alive; here all nodes of a step have logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
from operator import mul

from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, PrefixCache, Step, Target, Want, recipe
from outpace.core.tree import Shape
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.hf.target import HFTarget
from outpace.recipes.serving.specmemo.footprint import ModelDrafter, StepMemory, prompt_part
from outpace.recipes.serving.specmemo.least_memory import LeastMemory
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2506.01986", family="batching and serving")
def specmemo(
    target: Target,
    *,
    draft: Target,
    memory: int = 1 << 30,
    widths: tuple[int, ...] = (2, 2, 1, 1, 1),
    min_speed: float = 0.0,
) -> Parts:
    """A tree of a draft model's most probable tokens, cut to a memory budget.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        memory: bytes for the KV caches, logits and temporary tensors of both models, without their weights
        widths: children of every node at each depth of the largest draft
        min_speed: share of the best speed that the least memory is to keep, such as 0.96; 0 fills the budget
    """
    part = prompt_part(memory, target, draft)
    drafter = DraftModel(draft, sampled=False, prompt_tokens=part)
    step_memory = StepMemory(target, drafter, list(accumulate(widths, mul)), part)
    least = LeastMemory(min_speed, step_memory.nodes, target.sizes) if min_speed else None
    controller = MemoryBudget(Shape.branching(widths), memory, step_memory, drafter, least)
    target = target.on_demand() if isinstance(target, HFTarget) else target
    return Parts(target, drafter, Match(), controller, prompt_part=part)


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
