"""Medians and what they are worth: seeded bootstrap intervals over prompts and rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high}


def bootstrap(
    groups: Sequence[Sequence[float]], *, seed: int = 0, draws: int = 2000, share: float = 0.95
) -> Interval:
    """Median of all values. Prompts are groups and rounds the values in them: both are drawn again, prompts first,
    because rounds of one prompt say little about other prompts."""
    kept = [np.asarray(group, dtype=float) for group in groups if len(group)]
    if not kept:
        return Interval(float("nan"), float("nan"), float("nan"))
    median = float(np.median(np.concatenate(kept)))
    generator = np.random.default_rng(seed)
    most = max(map(len, kept))
    padded = np.stack([np.resize(group, most) for group in kept])  # (G, R), cycled where a round is missing
    lengths = np.array([len(group) for group in kept])
    chosen = generator.integers(0, len(kept), size=(draws, len(kept)))
    rounds = (generator.random((draws, len(kept), most)) * lengths[chosen][..., None]).astype(int)
    medians = np.median(padded[chosen[..., None], rounds].reshape(draws, -1), axis=1)
    low, high = np.quantile(medians, [(1 - share) / 2, (1 + share) / 2])
    return Interval(median, float(low), float(high))


@dataclass(frozen=True)
class Mean:
    """A mean with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"mean": self.mean, "low": self.low, "high": self.high}


def bootstrap_mean(
    groups: Sequence[Sequence[float]], *, seed: int = 0, draws: int = 2000, share: float = 0.95
) -> Mean:
    """Mean of all values. Groups are drawn again, then the values in each: values of one group are alike. Paired when
    the values are differences."""
    kept = [np.asarray(group, dtype=float) for group in groups if len(group)]
    if not kept:
        return Mean(float("nan"), float("nan"), float("nan"))
    generator = np.random.default_rng(seed)
    sums = np.zeros((len(kept), draws))
    chosen = generator.multinomial(len(kept), np.full(len(kept), 1 / len(kept)), size=draws)  # (draws, G)
    for index, group in enumerate(kept):
        sums[index] = group[generator.integers(0, len(group), size=(draws, len(group)))].sum(1)
    sizes = np.array([len(group) for group in kept])
    means = (chosen * sums.T).sum(1) / (chosen @ sizes)
    low, high = np.quantile(means, [(1 - share) / 2, (1 + share) / 2])
    return Mean(float(np.concatenate(kept).mean()), float(low), float(high))
