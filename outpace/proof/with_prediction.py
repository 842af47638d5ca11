"""Recipes combined with a predicted output, which a caller may pass with any recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outpace.core.contracts import Context, Draft, Parts, Plan
from outpace.drafters.lookup.prediction import PredictionDrafter

# no token 2: after a 2 or at the end the recipe drafts; after 0 or 1 an n-gram match resumes it
PREDICTION = (0, 1, 0)


def predicting(build: Callable[[], Parts]) -> Callable[[], Parts]:
    """The parts, their drafter wrapped in one that predicts `PREDICTION` for every request."""

    def built() -> Parts:
        parts = build()
        return replace(parts, drafter=_SamePrediction(parts.drafter))

    return built


class _SamePrediction(PredictionDrafter):
    """A PredictionDrafter with the same prediction for every request."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        for slot in ctx.slots:
            if slot not in self._cursors:
                self.predict(slot, PREDICTION)
        return super().propose(ctx, plan)
