"""Exponential weights for bandits: arms drawn with probabilities that fall with their estimated losses."""

from __future__ import annotations

from math import exp, log, sqrt


class EXP3:
    """Implementation of controllers.bandit.Policy (EXP3Spec of Hou et al. 2025, after Auer et al. 2002). It
    assumes nothing about how rewards change from round to round.

    In round t an arm is drawn with probability P proportional to exp(-η Z) with η = sqrt(ln K / (t K)), where
    K is the number of arms and Z the sum of the arm's estimated losses: (1 - reward / largest reward) / P in
    a round in which it was drawn, 0 in others, so that the expected estimate is the loss.
    """

    def __init__(self, num_arms: int) -> None:
        self.num_chosen = [0] * num_arms  # rounds of each arm
        # sums over measured rounds of an arm of 1 / P and reward / P: the largest reward may still grow
        self._weight, self._reward = [0.0] * num_arms, [0.0] * num_arms
        self._largest, self._num_measured = 0.0, 0

    def probs(self) -> list[float]:
        arms = len(self._weight)
        rate = sqrt(log(arms) / ((self._num_measured + 1) * arms))
        losses = [self._loss(arm) for arm in range(arms)]
        least = min(losses)
        weights = [exp(-rate * (loss - least)) for loss in losses]
        return [weight / sum(weights) for weight in weights]

    def _loss(self, arm: int) -> float:
        """The sum of the arm's estimated losses."""
        share = self._reward[arm] / self._largest if self._largest else 0.0
        return self._weight[arm] - share

    def record(self, arm: int, reward: float | None, largest: float) -> None:
        self.num_chosen[arm] += 1
        prob = self.probs()[arm]
        self._largest = largest
        if reward is not None:
            self._num_measured += 1
            self._weight[arm] += 1 / prob
            self._reward[arm] += reward / prob
