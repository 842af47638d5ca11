"""Means with 95 % bootstrap intervals over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outpace.bench.measure.bootstrap import limits


@dataclass(frozen=True)
class Mean:
    """A mean over prompts with its 95 % bootstrap interval; low and high are NaN with fewer than MIN_GROUPS
    prompts."""

    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def mean_interval(groups: Sequence[Sequence[float]], *, seed: int = 0) -> Mean:
    """The mean of all values; whole groups (prompts) are resampled. For a paired comparison, pass the pairs'
    differences."""
    kept = [group for group in groups if len(group)]
    if not kept:
        return Mean(float("nan"), float("nan"), float("nan"))
    sums, sizes = np.array([sum(group) for group in kept], float), np.array([len(group) for group in kept])
    return Mean(float(sums.sum() / sizes.sum()), *limits((sums, sizes), _pooled_mean, seed))


def _pooled_mean(sums: NDArray[Any], sizes: NDArray[Any], axis: int = -1) -> NDArray[Any]:
    return sums.sum(axis=axis) / sizes.sum(axis=axis)
