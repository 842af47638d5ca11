"""How much a proof's runs drafted and accepted, so that a proof in which nothing was drafted is seen to show
nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outpace.core.contracts import Context, Controller, Parts, Plan, Step


@dataclass
class DraftCounts:
    """Counts over the sampled rows (temperature above 0) of all steps that follow the prompt."""

    allowed: int = 0  # deepest path that a controller allowed, within the tokens left to generate
    drafted: int = 0  # draft tokens
    accepted: int = 0  # draft tokens that were committed
    deepest: int = 0  # depth of the deepest of these

    def watch(self, parts: Parts) -> Parts:
        """The same parts; what their controller allows is recorded here."""
        return replace(parts, controller=_Watched(parts.controller, self))

    def add(self, step: Step) -> None:
        """Count what the sampled rows of a step drafted and committed."""
        forest = step.draft.tree.forest
        for row, params in enumerate(step.ctx.sampling):
            if params.greedy or step.ctx.committed[row] < step.ctx.prompt_lengths[row]:
                continue  # a step below the length of the prompt reads the prompt
            depth = forest.depths[step.kept[row]]
            self.drafted += len(forest.nodes[row]) - 1
            self.accepted += depth
            self.deepest = max(self.deepest, depth)

    @property
    def enough(self) -> bool:
        """Whether draft tokens were accepted, at depth 2 or more where that was allowed; True if none were
        allowed."""
        return self.deepest >= min(self.allowed, 2)


class _Watched:
    """core.contracts.Controller that records the depths of another one's plans."""

    def __init__(self, controller: Controller, counts: DraftCounts) -> None:
        self._controller, self._counts, self.want = controller, counts, controller.want
        self.observe, self.release = controller.observe, controller.release

    def plan(self, ctx: Context) -> Plan:
        plan = self._controller.plan(ctx)
        sampled = [
            min(depth, room)
            for depth, room, params in zip(plan.depth, ctx.room, ctx.sampling, strict=True)
            if not params.greedy
        ]
        self._counts.allowed = max(self._counts.allowed, *sampled, 0)
        return plan
