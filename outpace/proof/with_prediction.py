"""Recipes combined with a predicted output, which a caller may pass with any recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outpace.core.contracts import Parts
from outpace.drafters.lookup.prediction import PredictionDrafter

# no token 2: after a 2 or at the end the recipe drafts; after 0 or 1 an n-gram match resumes it
PREDICTION = (0, 1, 0)


def predicting(build: Callable[[], Parts], rows: int) -> Callable[[], Parts]:
    """The parts, their drafter wrapped in a PredictionDrafter with `PREDICTION` for each of `rows` slots."""

    def built() -> Parts:
        parts = build()
        return replace(parts, drafter=PredictionDrafter(parts.drafter, [PREDICTION] * rows))

    return built
