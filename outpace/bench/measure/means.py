"""Means and differences of two means with 95 % bootstrap intervals over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outpace.bench.measure.bootstrap import limits

Total = tuple[float, int]  # sum of the values of a group (prompt), and their number, which is not 0


@dataclass(frozen=True)
class Mean:
    """A mean over prompts, or a difference of two, with its 95 % bootstrap interval; low and high are NaN
    with fewer than MIN_GROUPS prompts."""

    mean: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there were enough prompts for an interval."""
        return self.low == self.low

    def to_json(self) -> dict[str, float]:
        return asdict(self)


NONE = Mean(float("nan"), float("nan"), float("nan"))


def mean_interval(groups: Sequence[Sequence[float]], *, seed: int = 0) -> Mean:
    """The mean of all values; whole groups (prompts) are resampled. For a paired comparison, pass the pairs'
    differences."""
    return mean_of_totals([(sum(group), len(group)) for group in groups if len(group)], seed=seed)


def mean_of_totals(totals: Sequence[Total], *, seed: int = 0) -> Mean:
    """The mean of all values of groups of which the totals are known; whole groups are resampled."""
    if not totals:
        return NONE
    sums, sizes = _columns(totals)
    return Mean(float(sums.sum() / sizes.sum()), *limits((sums, sizes), _pooled_mean, seed))


def difference_of_means(totals: Sequence[tuple[Total, Total]], *, seed: int = 0) -> Mean:
    """The mean of all first values minus that of all second ones; each group has both, and is resampled with
    both."""
    if not totals:
        return NONE
    samples = (*_columns([first for first, _ in totals]), *_columns([second for _, second in totals]))
    return Mean(float(_difference(*samples)), *limits(samples, _difference, seed))


def _columns(totals: Sequence[Total]) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.array([total for total, _ in totals], float), np.array([size for _, size in totals])


def _pooled_mean(sums: NDArray[Any], sizes: NDArray[Any], axis: int = -1) -> NDArray[Any]:
    return sums.sum(axis=axis) / sizes.sum(axis=axis)


def _difference(
    sums: NDArray[Any],
    sizes: NDArray[Any],
    other_sums: NDArray[Any],
    other_sizes: NDArray[Any],
    axis: int = -1,
) -> NDArray[Any]:
    return _pooled_mean(sums, sizes, axis) - _pooled_mean(other_sums, other_sizes, axis)
