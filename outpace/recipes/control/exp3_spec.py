"""EXP3Spec (Hou et al. 2025): draws which of several methods drafts, the more often the better it did.

New here: EXP3, the rule by which Bandit draws. Reuses: ArmsDrafter, Bandit, the methods named by `arms`,
Rejection. Exact at any temperature: the method is drawn with noise of its own, from probabilities that follow
from earlier steps and measured times, so that q of the chosen method is the distribution of its tokens. With
`reward` "speed" two runs with the same seed may draw different texts from the same distribution, as times are
measured; greedy texts are equal.

The rule assumes nothing about how the rewards of methods change within a request, and keeps trying all of
them; UCBSpec (`ucb-spec`) assumes that they stay, and tries the worse ones less. What was learned ends with
the request. Rewards and `lengths` are those of `ucb-spec`: the paper's reward is "tokens", the default
"speed" also counts the time of drafting.
"""

from __future__ import annotations

from math import exp, log, sqrt
from typing import Literal

from outpace.controllers.bandit import Bandit, arms_of
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.compose.arms import ArmsDrafter
from outpace.drafters.compose.methods import USUAL_METHODS, Methods, check_rejection
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2505.15141", family="control and routing")
def exp3_spec(
    target: Target,
    *,
    arms: Methods = USUAL_METHODS,
    draft: Target | None = None,
    lengths: tuple[int, ...] = (),
    reward: Literal["speed", "tokens"] = "speed",
) -> Parts:
    """One of several methods, drawn by exponential weights and verified by rejection.

    Args:
        arms: methods to choose among, as in prompt-lookup:depth=8,mcsd; without a draft the usual lookups
        draft: draft model of the methods that need one, with the target's vocabulary
        lengths: most tokens of a path, each of which is tried with every method; none: as the methods plan
        reward: what is compared: tokens per second of a step, or accepted tokens
    """
    methods = arms.parts(target, draft)
    check_rejection(methods)
    choice = Bandit(arms_of(len(methods), lengths), EXP3, reward=reward)
    return Parts(target, ArmsDrafter(list(methods.values())), Rejection(), choice)


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
