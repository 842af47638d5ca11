"""Counts of drafted and accepted tokens of a proof: a proof without accepted draft tokens tests nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outpace.core.contracts import Context, Controller, Parts, Plan, Step


@dataclass
class DraftCounts:
    """Counts over the rows of all steps that generate tokens by sampling (temperature above 0)."""

    greedy: bool = False  # count the rows at temperature 0 instead
    allowed: int = 0  # largest depth planned by a controller, capped by the tokens left to generate
    drafted: int = 0  # number of draft tokens
    accepted: int = 0  # number of draft tokens that were committed
    deepest: int = 0  # depth in its tree of the deepest committed draft token

    def watch(self, parts: Parts) -> Parts:
        """The parts with a controller that records the depths it plans in `allowed`."""
        return replace(parts, controller=_Watched(parts.controller, self))

    def add(self, step: Step) -> None:
        """Add the draft tokens and the committed draft tokens of a step's sampled rows."""
        forest = step.draft.tree.forest
        for row, params in enumerate(step.ctx.sampling):
            if params.greedy != self.greedy or not step.generated[row]:
                continue
            depth = forest.depths[step.kept[row]]
            self.drafted += len(forest.nodes[row]) - 1
            self.accepted += depth
            self.deepest = max(self.deepest, depth)

    @property
    def enough(self) -> bool:
        """Whether draft tokens were accepted, at depth 2 or more if such a depth was planned; True if no
        draft was planned."""
        return self.deepest >= min(self.allowed, 2)


class _Watched:
    """Implementation of core.contracts.Controller: another controller, whose planned depths are recorded."""

    def __init__(self, controller: Controller, counts: DraftCounts) -> None:
        self._controller, self._counts, self.want = controller, counts, controller.want
        self.plans_across_rows = controller.plans_across_rows
        self.observe, self.release = controller.observe, controller.release

    def plan(self, ctx: Context) -> Plan:
        plan = self._controller.plan(ctx)
        # of a draft made ahead, the first token is counted as the step's bonus token
        apart = 1 if ctx.certain else 0
        counted = [
            min(depth, max_depth) - apart
            for depth, max_depth, params in zip(plan.depth, ctx.max_draft_depth, ctx.sampling, strict=True)
            if params.greedy == self._counts.greedy
        ]
        self._counts.allowed = max(self._counts.allowed, *counted, 0)
        return plan
