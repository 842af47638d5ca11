"""Whether sampled texts follow a model's distribution, at any vocabulary: each token's place in its distribution, tested for uniformity.

If a token is drawn from p given everything before it, then the mass of the likelier tokens plus a uniform share of its
own is itself uniform, and independent of the earlier ones. The places of all tokens are counted in equal cells and
compared with equal counts (G-test), so one number of degrees of freedom serves every model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CELLS = 16


@dataclass(frozen=True)
class GTest:
    """G = 2 sum O ln(O / E) over the cells."""

    tokens: int
    statistic: float
    p_value: float
    false_alarms: float  # how often a right method is called wrong
    detects: float  # total variation from the distribution that would be found 99 times in 100

    @property
    def holds(self) -> bool:
        return self.p_value >= self.false_alarms


def places(
    probs: Tensor, tokens: Sequence[int], generator: torch.Generator
) -> list[float]:  # (T, V), T of them
    """Where each token stands in its distribution, the likeliest first: uniform numbers if the tokens follow the distribution."""
    chosen = torch.tensor(tokens)[:, None]
    p = probs.double()
    own = p.gather(1, chosen)
    index = torch.arange(p.shape[1])
    before = (p > own) | ((p == own) & (index < chosen))
    mass = (p * before).sum(1)
    return (mass + torch.rand(len(tokens), generator=generator, dtype=torch.float64) * own[:, 0]).tolist()


def g_test(numbers: Sequence[float], false_alarms: float = 1e-6) -> GTest:
    """Test that these numbers are uniform on [0, 1]."""
    count = len(numbers)
    if count < 20 * CELLS:
        raise ValueError(
            f"{count} tokens are too few for a test with {CELLS} cells: sample at least {20 * CELLS}"
        )
    cells = [0] * CELLS
    for number in numbers:
        cells[min(CELLS - 1, int(number * CELLS))] += 1
    expected = count / CELLS
    statistic = 2 * sum(seen * math.log(seen / expected) for seen in cells if seen)
    # a total variation d gives a non-centrality of at least 4 n d^2 (Pinsker); 99 % power needs about
    # the critical value plus 2.33 standard deviations of the non-central distribution
    critical = _critical(false_alarms)
    centre = critical + 2.33 * math.sqrt(2 * (CELLS - 1) + 4 * critical) - (CELLS - 1)
    return GTest(count, statistic, _tail(statistic), false_alarms, math.sqrt(centre / (4 * count)))


def _tail(statistic: float) -> float:
    """Chance of a larger chi-square value with CELLS - 1 degrees of freedom."""
    half = torch.tensor([(CELLS - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _critical(chance: float) -> float:
    """The chi-square value exceeded with this chance."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(middle) > chance else (low, middle)
    return high
