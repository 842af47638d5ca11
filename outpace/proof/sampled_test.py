"""Statistical test of whether sampled tokens follow a model's distribution, for any vocabulary size.

For a token drawn from p given the tokens before it, the total probability of the more probable tokens plus a
uniformly random share of its own probability is uniform on [0, 1] and independent of earlier tokens (the
randomised probability integral transform). These values are counted in `CELLS` cells of equal width and
compared with equal counts by a G-test, so the degrees of freedom do not depend on the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import root_scalar
from scipy.stats import chi2, ncx2, power_divergence
from torch import Tensor

CELLS = 16  # cells of [0, 1]; the test has CELLS - 1 degrees of freedom
FEWEST = 20 * CELLS  # fewest tokens of a test
POWER = 0.99  # probability of detecting the deviation stated as `GTest.detects`


@dataclass(frozen=True)
class GTest:
    """Result of a G-test: G = 2 sum O ln(O / E) over the cells, O observed and E expected counts."""

    tokens: int
    statistic: float
    p_value: float
    false_alarms: float  # probability that an exact method fails the test
    detects: float  # total variation distance on the cells that is detected with probability `POWER`

    @property
    def holds(self) -> bool:
        """Whether the tokens are compatible with the distribution."""
        return self.p_value >= self.false_alarms


def uniform_values(
    probs: Tensor, tokens: Sequence[int], generator: torch.Generator
) -> list[float]:  # (T, V), T tokens -> T values
    """Per token the total probability of the more probable tokens (ties: lower token id first) plus a
    uniformly random share of its own probability; row t of `probs` is the distribution of token t."""
    chosen = torch.tensor(tokens)[:, None]
    p = probs.double()
    own = p.gather(1, chosen)
    index = torch.arange(p.shape[1])
    before = (p > own) | ((p == own) & (index < chosen))
    mass = (p * before).sum(1)
    return (mass + torch.rand(len(tokens), generator=generator, dtype=torch.float64) * own[:, 0]).tolist()


def g_test(values: Sequence[float], false_alarms: float = 1e-4) -> GTest:
    """Test that these values are uniform on [0, 1]; ValueError for fewer than `FEWEST` values."""
    count = len(values)
    if count < FEWEST:
        raise ValueError(f"{count} tokens are too few to test: sample at least {FEWEST}")
    cells, _ = np.histogram(np.clip(values, 0, 1), CELLS, (0, 1))
    statistic = float(power_divergence(cells, lambda_="log-likelihood").statistic)
    # a total variation distance d gives a non-centrality of at least 4 n d^2 (Pinsker)
    critical = float(chi2.isf(false_alarms, CELLS - 1))
    centrality = root_scalar(lambda c: ncx2.sf(critical, CELLS - 1, c) - POWER, bracket=(1e-6, 1e4)).root
    p_value = float(chi2.sf(statistic, CELLS - 1))
    return GTest(count, statistic, p_value, false_alarms, float(np.sqrt(centrality / (4 * count))))
