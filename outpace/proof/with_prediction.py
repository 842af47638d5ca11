"""Recipes behind a prediction of the answers, as a caller may give one with any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outpace.core.contracts import Parts
from outpace.drafters.lookup.prediction import PredictionDrafter

PREDICTION = (
    0,
    1,
    0,
)  # behind a 2, and at its end, the recipe drafts; behind another token its place is found again


def predicting(build: Callable[[], Parts], rows: int) -> Callable[[], Parts]:
    """The same parts behind one prediction in each of these rows."""

    def built() -> Parts:
        parts = build()
        return replace(parts, drafter=PredictionDrafter(parts.drafter, [PREDICTION] * rows))

    return built
