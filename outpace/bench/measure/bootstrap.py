"""Medians with 95 % bootstrap intervals over prompts: scipy's percentile bootstrap, seeded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

MIN_GROUPS = 3  # prompts (at a batch size over 1: batches) that an interval needs at least
RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A median over prompts with its 95 % bootstrap interval; low and high are NaN with fewer than MIN_GROUPS
    prompts."""

    median: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there were enough prompts for an interval."""
        return self.low == self.low

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def median_interval(groups: Sequence[Sequence[float]], *, seed: int = 0) -> Interval:
    """The median over prompts (one group each) of the prompt's median over its rounds. Whole prompts are
    resampled, because the rounds of one prompt are not independent samples."""
    medians = np.array([np.median(group) for group in groups if len(group)])
    if not len(medians):
        return Interval(float("nan"), float("nan"), float("nan"))
    return Interval(float(np.median(medians)), *limits((medians,), np.median, seed))


def limits(samples: tuple[NDArray[Any], ...], statistic: Any, seed: int) -> tuple[float, float]:
    """The ends of the interval of a statistic over paired samples, one value of each for a group; NaN with
    fewer than MIN_GROUPS groups."""
    if len(samples[0]) < MIN_GROUPS:
        return float("nan"), float("nan")
    interval = stats.bootstrap(
        samples,
        statistic,
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)
