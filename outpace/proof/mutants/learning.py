"""Mutant of drafters whose weights change while they are in use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan
from outpace.drafters.learning.online_learning import LearningDrafter
from outpace.proof.mutants.cross_vocabulary import Remembered

# options with which nothing else is learned: all runs of a mutant's test share its drafter
NEVER = {"requests": 1 << 30, "positions": 1 << 30}


class ClaimedByTheNextVersion(LearningDrafter):
    """Mutant: changes the weights while a draft is pending, and records the distributions of the changed
    weights as q."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        model: Any = self._model
        ctx, before = replace(ctx, noise=Remembered(ctx.noise)), model.weights
        super().propose(ctx, plan)
        try:
            model.use(tuple([each.flip(-1) for each in before]))
            return super().propose(ctx, plan)
        finally:
            model.use(before)

    @staticmethod
    def of(parts: Parts) -> Parts:
        """Parts with a drafter that learns, and makes this mistake."""
        drafter = parts.drafter
        assert isinstance(drafter, LearningDrafter)
        made = ClaimedByTheNextVersion(drafter._model, drafter.drafter, drafter.learning)
        return replace(parts, drafter=made)
