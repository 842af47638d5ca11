"""Seconds of a forward as a monotone function of its number of tokens, from measured points."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from scipy.optimize import isotonic_regression


class CostCurve:
    """Seconds of one forward by nodes per row: linear interpolation between monotone points, extrapolated
    beyond the last."""

    def __init__(self, points: Mapping[int, float]) -> None:
        if not points or min(points) < 1:
            raise ValueError("a cost curve needs at least one point, of at least one node")
        self.sizes = sorted(points)
        # more nodes do not take less time: the nearest non-decreasing values
        self.seconds: list[float] = isotonic_regression([points[size] for size in self.sizes]).x.tolist()

    def __call__(self, nodes: float) -> float:
        sizes, seconds = self.sizes, self.seconds
        if len(sizes) == 1 or nodes <= sizes[0]:
            return seconds[0]
        right = min(bisect_left(sizes, nodes), len(sizes) - 1)
        slope = (seconds[right] - seconds[right - 1]) / (sizes[right] - sizes[right - 1])
        return seconds[right - 1] + slope * (nodes - sizes[right - 1])

    def to_json(self) -> dict[str, float]:
        """Nodes per row -> milliseconds."""
        return {str(size): 1000 * value for size, value in zip(self.sizes, self.seconds, strict=True)}
