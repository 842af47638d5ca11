"""Log-linear laws of draft heads (Yan et al. 2025, Scylla): y = a * log10(x) + b.

y is the acceptance length, bonus token included, x the number of tokens that the head was trained on, or its
size (decoder layers or parameters); or y is the best speed and x the batch size. A law is fitted to the
results of a small grid of trainings and tested on one that it has not seen, before the large training is paid
for.

All points of a fit have one target, one kind of prompts, one temperature and one tree: acceptance lengths of
different trees, or counted without the bonus token in some points, do not lie on one line. A law of sizes
says nothing about speed: a larger head drafts more slowly. `outpace.analysis.draft_design` weighs one against
the other.

Letters: N points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, log10


@dataclass(frozen=True)
class LogLinear:
    """A fitted law."""

    slope: float  # a: what a tenfold x adds
    intercept: float  # b
    r_squared: float  # share of the variance of y that the law explains; 1 if y is constant

    def __call__(self, x: float) -> float:
        """The predicted y. ValueError for an x of 0 or less."""
        return self.slope * _log(x) + self.intercept

    def needed(self, y: float) -> float:
        """The smallest x with at least this y by a rising law; infinite if the law does not rise or the x is
        beyond the range of numbers."""
        if self.slope <= 0:
            return inf
        exponent = (y - self.intercept) / self.slope
        return 10.0**exponent if exponent < 300 else inf


@dataclass(frozen=True)
class HeldOut:
    """A law and a point that it was not fitted to."""

    law: LogLinear
    x: float
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted minus measured."""
        return self.predicted - self.measured


def fit(points: Sequence[tuple[float, float]]) -> LogLinear:  # N × (x, y)
    """The law with the least squared errors. ValueError for fewer than two different x, an x of 0 or less, or
    a number that is not finite."""
    logs, ys = [_log(x) for x, _ in points], [float(y) for _, y in points]
    if not all(map(isfinite, ys)):
        raise ValueError("a point has a y that is not a finite number: leave it out")
    if len(set(logs)) < 2:
        raise ValueError("a law needs points with two different x: add a result of another size")
    mean_x, mean_y = sum(logs) / len(logs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in logs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(logs, ys, strict=True)) / spread
    intercept = mean_y - slope * mean_x
    total = sum((y - mean_y) ** 2 for y in ys)
    left = sum((y - slope * x - intercept) ** 2 for x, y in zip(logs, ys, strict=True))
    return LogLinear(slope, intercept, 1 - left / total if total else 1.0)


def held_out(points: Sequence[tuple[float, float]]) -> HeldOut:  # N × (x, y)
    """The law fitted to all points but the one with the largest x, and that point: a law is used to
    extrapolate, so it is tested that way. ValueError as `fit`; it needs points with three different x for a
    test that can fail."""
    ordered = sorted(points)
    if len({x for x, _ in ordered}) < 3:
        raise ValueError("a held-out test needs points with three different x: add a result of another size")
    x, measured = ordered[-1]
    law = fit([point for point in ordered if point[0] < x])
    return HeldOut(law, x, measured, law(x))


def _log(x: float) -> float:
    if not (isfinite(x) and x > 0):
        raise ValueError(f"x is {x}: a logarithm needs a positive number")
    return log10(x)
