"""Enumerated noise: replay a program over every random choice it can make, for the exact distribution of its
output.

Each key owns one uniform number, kept as an interval. A choice splits the interval by the distribution's
cumulative sums and goes into one part; the others become new scripts to replay. Fresh keys thus behave as
independent choices and a key met again as the same number, as in production: noise that is used twice is seen
to bias the output, and methods that share noise on purpose come out right.

The open scripts are the rows of one batch, so a step of the engine advances thousands of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outpace.core.noise import TARGET, Chooser, Key

Name = tuple[object, ...]  # of a uniform number
Intervals = dict[Name, tuple[float, float]]

NARROW = 1e-15  # parts of an interval below this width are rounding, not options


class NotRepeatable(RuntimeError):
    """A run made other choices when it was repeated: something in it is random besides its noise."""


@dataclass
class Branch:
    """One run of one row: the choices it is told to make, then always the first; what it left open is
    recorded."""

    script: tuple[int, ...]
    case: int  # which of several requests it belongs to
    chance: float = 1.0
    made: list[int] = field(default_factory=list[int])
    left_open: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    intervals: Intervals = field(default_factory=dict[Name, "tuple[float, float]"])

    def pick(self, name: Name, distribution: Sequence[float]) -> int:
        """The option this run takes; `distribution` need not sum to 1."""
        low, high = self.intervals.get(name, (0.0, 1.0))
        total, below = sum(distribution), 0.0
        options: list[tuple[int, float, float]] = []
        for option, weight in enumerate(distribution):
            start, below = below, below + weight / total
            start, end = max(low, start), min(high, below)
            if weight > 0 and end - start > NARROW:
                options.append((option, start, end))
        if not options:
            raise NotRepeatable(
                "no option of a random choice is left after the earlier ones of the same number"
            )
        index = 0
        if len(options) > 1:
            depth = len(self.made)
            if depth < len(self.script):
                index = self.script[depth]
                if index >= len(options):
                    raise NotRepeatable("a random choice has fewer options than when it was met first")
            else:
                self.left_open += [(*self.made, other) for other in range(1, len(options))]
            self.made.append(index)
        option, start, end = options[index]
        self.chance *= (end - start) / (high - low)
        self.intervals[name] = (start, end)
        return option


class EnumeratedNoise(Chooser):
    """core.contracts.Noise over branches; `turns` and `lengths` make its keys, as in production."""

    def __init__(self, branches: Sequence[Branch], turns: Sequence[int], lengths: Sequence[int]) -> None:
        self._branches, self._turns, self._lengths = branches, turns, lengths

    def _names(self, key: Key) -> list[tuple[Branch, Name]]:
        named = []
        for row, node, depth in zip(key.rows, key.nodes, key.depths, strict=True):
            if key.use == TARGET:
                name = (TARGET, self._lengths[row] + depth)
            else:
                name = (key.use, self._turns[row], node, key.draw)
            named.append((self._branches[row], name))
        return named

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        distributions = probs.tolist()
        picked = [
            branch.pick(name, distribution)
            for (branch, name), distribution in zip(self._names(key), distributions, strict=True)
        ]
        return torch.tensor(picked, dtype=torch.int64)

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        named = self._names(key)
        return [
            branch.pick(name, (min(1.0, chance), max(0.0, 1.0 - chance))) == 0
            for (branch, name), chance in zip(named, accept, strict=True)
        ]
