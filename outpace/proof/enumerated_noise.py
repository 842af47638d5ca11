"""Noise for exact enumeration: a program is run once per combination of outcomes of its random choices.

Each key has one uniform number, represented by an interval. A choice splits the interval at the
distribution's cumulative sums and takes one part; the other parts become new scripts (lists of choices) to
run. A new key is thus an independent choice, and a key used again is the same number, as in production: reuse
of noise biases the enumerated distribution just as it would bias the output, and methods that share noise on
purpose are correct.

Scripts are run as rows of one batch, so one step of the engine advances many of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outpace.core.noise import TARGET, Chooser, Key

Name = tuple[object, ...]  # identifies a uniform number: the fields of its key
Intervals = dict[Name, tuple[float, float]]

NARROW = 1e-15  # narrower parts of an interval are rounding, not options


class NotRepeatable(RuntimeError):
    """A repeated run had other options at a random choice: it depends on randomness besides its noise."""


@dataclass
class Branch:
    """One run of one row: it takes the options in `script`, then the first option of every further choice.
    The alternatives that it did not take are recorded as scripts in `left_open`."""

    script: tuple[int, ...]  # index of the option at each choice between several
    case: int  # index of the run's request among the requests whose output distributions are enumerated
    probability: float = 1.0  # probability of all choices made so far (their product)
    made: list[int] = field(default_factory=list[int])  # index of the option taken at each choice so far
    left_open: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    # interval to which each uniform number is restricted so far
    intervals: Intervals = field(default_factory=dict[Name, "tuple[float, float]"])

    def pick(self, name: Name, distribution: Sequence[float]) -> int:
        """Index of the option of `distribution`, whose sum need not be 1, that this run takes by the uniform
        number `name`. NotRepeatable if the script does not fit."""
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
        self.probability *= (end - start) / (high - low)
        self.intervals[name] = (start, end)
        return option


class EnumeratedNoise(Chooser):
    """Implementation of core.noise.Noise: row b takes its choices from `branches[b]`. `turns` (step numbers)
    and `lengths` (committed lengths) are part of the keys, as in production."""

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
            branch.pick(name, (min(1.0, probability), max(0.0, 1.0 - probability))) == 0
            for (branch, name), probability in zip(named, accept, strict=True)
        ]
