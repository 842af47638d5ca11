"""NormalHedge: weights of experts whose losses are all known, without a learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from math import e, exp, log

HALVINGS = 60  # of the interval in which the scale is found


class NormalHedge:
    """The weights of N experts (Chaudhuri, Freund and Hsu 2009): an expert's weight follows from its regret
    R, the sum of the weighted experts' losses minus that of its own, if that is positive,

        w proportional to (R / c) exp(R² / 2c), where the mean of exp(max(R, 0)² / 2c) over all experts is e;

    equal weights if no regret is positive.
    """

    def __init__(self, num_experts: int) -> None:
        self.regrets = [0.0] * num_experts

    def weights(self) -> list[float]:
        """The weights, which sum to 1."""
        positive = [max(regret, 0.0) for regret in self.regrets]
        if not any(positive):
            return [1 / len(positive)] * len(positive)
        scale = scale_of(positive)
        weights = [regret / scale * exp(regret**2 / (2 * scale)) for regret in positive]
        return [weight / sum(weights) for weight in weights]

    def update(self, weights: Sequence[float], losses: Sequence[float]) -> None:
        """Add a round: the weights with which was acted, and the loss of each expert, from 0 to 1."""
        mean = sum(weight * loss for weight, loss in zip(weights, losses, strict=True))
        self.regrets = [regret + mean - loss for regret, loss in zip(self.regrets, losses, strict=True)]


def scale_of(regrets: Sequence[float]) -> float:
    """The c with which the mean of exp(R² / 2c) is e, for regrets R of at least 0, one of them positive."""
    squares, largest = [regret**2 for regret in regrets], max(regrets) ** 2

    def mean(scale: float) -> float:
        return sum(exp(square / (2 * scale)) for square in squares) / len(squares)

    # with the largest square s: at s / 2 no term exceeds e, and at s / 2 (1 + ln N) one of them is N e
    low, high = largest / (2 * (1 + log(len(squares)))), largest / 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle) > e else (low, middle)
    return high
