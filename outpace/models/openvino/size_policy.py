"""Chooses from measured times to how many tokens compiled inferences are padded, and when the size changes.

An inference is padded to one of a few sizes (numbers of tokens), because the first inference of a size is
slow, and so is a change of size. How much padding a change is worth depends on the model, the format of its
weights, the precision, the CPU and the number of threads, so both times are measured after compiling.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy

Seconds = numpy.ndarray[Any, Any]

# most tokens of one inference; only a larger tree exceeds it and is padded to a multiple of it
MAX_TOKENS = 256
# Sizes that are always used: for plain decoding, chains of five and ten, trees, batches. Sizes above 32 are
# close to each other: they are for prompts, which change the size anyway and can only save padding.
SIZES = (1, 6, 11, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, MAX_TOKENS)
FINER = (2, 4, 8, 13, 20, 24, 28, 40, 56)  # used where they save more than a change of size costs
MEASURED = (1, 6, 11, 16, 32, 64)  # times of other sizes are interpolated, and extrapolated above 64
# At least MIN_MEASURED sizes must have been timed MIN_TIMES times each; else the policy follows the number of
# weights, as for large models, of which a few inferences exceed the time for measuring.
MIN_MEASURED, MIN_TIMES = 4, 2
TOLERANCE = 1.5  # measurements are dismissed if a time exceeds what other sizes imply by this factor

# The policy without measurements, by the number of weights. With LARGE or more, the time of a forward is
# about proportional to its tokens, so all sizes are used. A change of size takes as long as MAX_PADDING
# tokens, or as long as PRODUCTS multiplications if these are fewer tokens.
LARGE = 30_000_000
MAX_PADDING, PRODUCTS = 32, 100_000_000


@dataclass(frozen=True)
class SizePolicy:
    """Sizes of inferences, and how much padding may be computed before the size is changed."""

    sizes: tuple[int, ...]  # ascending, from 1 to MAX_TOKENS
    costs: Mapping[int, float]  # of an inference, by size: seconds, or tokens if nothing was measured
    max_padding: float  # cost of padding that is computed before a change to a smaller size
    # Number of inferences over one token that keep a larger size before size 1 is used. It follows from the
    # number of weights alone, not from measurements, so that logits are reproducible: products with a single
    # vector have kernels of their own, which round differently.
    max_single: int

    def fit(self, total: int) -> int:
        """The smallest size above 1 for `total` tokens; above the last one a multiple of it."""
        for size in self.sizes:
            if size >= total and size > 1:
                return size
        return -(-total // MAX_TOKENS) * MAX_TOKENS

    def padding(self, size: int, fit: int) -> float:
        """Additional cost of an inference of `size` over one of size `fit`."""
        return max(0.0, self._cost(size) - self._cost(fit))

    def _cost(self, size: int) -> float:
        cost = self.costs.get(size)
        return self.costs[MAX_TOKENS] * size / MAX_TOKENS if cost is None else cost


class SizeChoice:
    """Sizes of consecutive inferences of one request under a policy."""

    def __init__(self, policy: SizePolicy) -> None:
        self._policy = policy
        # last size; number of inferences over one token since the last larger one
        self._size = self._num_single = 0
        self._padding = 0.0  # cost of padding that a smaller size would have saved, since the last change

    def take(self, total: int) -> int:
        """The size of the next inference, which has `total` tokens."""
        policy = self._policy
        if total > 1:
            self._num_single = 0
        else:
            self._num_single += 1
            if self._num_single > policy.max_single:
                self._size, self._padding = 1, 0.0
                return 1
        fit = policy.fit(total)
        if fit < self._size:
            self._padding += policy.padding(self._size, fit)
        else:
            self._padding = 0.0
        if fit > self._size or self._padding > policy.max_padding:
            self._size, self._padding = fit, 0.0
        return self._size


@dataclass(eq=False)
class SizeTimes:
    """Measured seconds of inferences of one size."""

    changed: list[float] = field(default_factory=list[float])  # right after an inference of another size
    repeated: list[float] = field(default_factory=list[float])  # after an inference of the same size


def fixed_policy(size: int) -> SizePolicy:
    """The policy for a graph that was compiled for exactly `size` tokens: every inference has that size."""
    return SizePolicy((size,), {size: 1.0}, 0.0, 0)


def policy_by_weights(num_weights: int) -> SizePolicy:
    """The policy without measurements, for a model with `num_weights` weights in its matrices."""
    sizes = tuple(sorted((*SIZES, *FINER))) if num_weights >= LARGE else SIZES
    max_padding = min(MAX_PADDING, PRODUCTS // num_weights)
    max_single = max_padding // (SIZES[1] - 1)
    return SizePolicy(sizes, {size: float(size) for size in sizes}, max_padding, max_single)


def policy_of(times: Mapping[int, SizeTimes], num_weights: int) -> SizePolicy:
    """The policy from measured times of some sizes; from the number of weights if the times are too few or
    contradict each other.

    Padding is computed until it has taken as long as a change of size and the change back: without knowing
    the next forwards, this takes at most twice the time of the better choice.
    """
    guess = policy_by_weights(num_weights)
    sizes = sorted(size for size, measured in times.items() if len(measured.changed) >= MIN_TIMES)
    if len(sizes) < MIN_MEASURED:
        return guess
    # minima, as other processes can only add time
    least = numpy.array([min(times[size].repeated) for size in sizes])
    monotone = numpy.minimum.accumulate(least[::-1])[::-1]
    change = median(min(times[size].changed) - float(own) for size, own in zip(sizes, least, strict=True))
    if change <= 0 or _contradict(sizes, least, monotone):
        return guess
    costs = _costs(sizes, monotone)
    kept = _with_finer(costs, change)
    return SizePolicy(kept, {size: costs[size] for size in kept}, 2 * change, guess.max_single)


def _contradict(sizes: Sequence[int], least: Seconds, monotone: Seconds) -> bool:
    """Whether a size took far longer than a larger size, or than several inferences of a smaller one."""
    # size 1 is exempt: products with one vector have kernels of their own, which may be slower
    if (least[1:] > TOLERANCE * monotone[1:]).any():
        return True
    return any(
        least[index] > TOLERANCE * -(-size // part) * least[before]
        for index, size in enumerate(sizes)
        for before, part in enumerate(sizes[:index])
    )


def _costs(sizes: Sequence[int], seconds: Seconds) -> dict[int, float]:
    """Seconds of all sizes from measured ones: linear interpolation, extrapolation with the last slope."""
    every = sorted((*SIZES, *FINER))
    interpolated = numpy.interp(every, sizes, seconds)
    slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
    beyond = numpy.maximum(0, numpy.array(every) - sizes[-1]) * slope
    return {size: float(cost) for size, cost in zip(every, interpolated + beyond, strict=True)}


def _with_finer(costs: Mapping[int, float], least: float) -> tuple[int, ...]:
    """The sizes to use: all of SIZES, and each of FINER that is at least `least` seconds faster than the next
    larger size and at least `least` seconds slower than the next smaller one."""
    kept = list[int](SIZES)
    for size in reversed(FINER):
        above = next(other for other in kept if other > size)
        below = max(other for other in kept if other < size)
        # size 1 cannot replace a size for several tokens
        if costs[above] - costs[size] >= least and (below == 1 or costs[size] - costs[below] >= least):
            insort(kept, size)
    return tuple(kept)
