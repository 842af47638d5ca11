"""Upper confidence bounds: the arm whose mean reward may be the largest."""

from __future__ import annotations

from math import inf, log, sqrt


class UCB:
    """Implementation of controllers.bandit.Policy (UCBSpec of Hou et al. 2025, after Abbasi-Yadkori et al.
    2011): every arm once, then the one with the largest sum of mean reward and confidence radius

        scale · (L / 2) · sqrt((1 + n) / n² · (1 + 2 ln(K t² sqrt(1 + n) / δ)))

    where K is the number of arms, t of rounds, n of rounds of this arm, and L the largest possible reward.
    """

    def __init__(self, num_arms: int, *, scale: float = 1.0, delta: float = 0.05) -> None:
        """`scale`: of the radius; 1 is the paper's. `delta`: the δ above. ValueError for a scale that is
        negative or not finite, and for a δ that is no probability above 0."""
        if not (0 <= scale < inf and 0 < delta <= 1):
            raise ValueError(
                f"scale is {scale} and delta {delta}; use 0 or more for scale, and a probability above 0 for "
                "delta"
            )
        self._scale, self._delta = scale, delta
        self.num_chosen = [0] * num_arms  # rounds of each arm
        self._num_measured, self._sum = [0] * num_arms, [0.0] * num_arms
        self._largest = 0.0

    def probs(self) -> list[float]:
        best = self._next()
        return [float(arm == best) for arm in range(len(self._sum))]

    def _next(self) -> int:
        arms = range(len(self._sum))
        unknown = [arm for arm in arms if not self._num_measured[arm]]
        if unknown:  # rounds may be without a measurement: then the arms take turns
            return min(unknown, key=self.num_chosen.__getitem__)
        return max(arms, key=self.bound)

    def bound(self, arm: int) -> float:
        """The upper confidence bound of an arm that was measured."""
        n, rounds = self._num_measured[arm], sum(self._num_measured) + 1
        width = 1 + 2 * log(len(self._sum) * rounds**2 * sqrt(1 + n) / self._delta)
        return self._sum[arm] / n + self._scale * self._largest / 2 * sqrt((1 + n) / n**2 * width)

    def record(self, arm: int, reward: float | None, largest: float) -> None:
        self.num_chosen[arm] += 1
        self._largest = largest
        if reward is not None:
            self._num_measured[arm] += 1
            self._sum[arm] += reward
