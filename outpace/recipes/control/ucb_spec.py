"""UCBSpec (Hou et al. 2025): a bandit learns in each request which of several methods drafts best.

New here: UCB, the rule that chooses; Bandit, the controller that applies such a rule in each request; and
ArmsDrafter, which runs the drafter of the chosen method. Reuses: the methods named by `arms`, Rejection.
Exact at any temperature: the choice follows from committed tokens, earlier steps and measured times, never
from a token that is drawn in the step, so that q of the chosen method is the distribution of its tokens. With
`reward` "speed" two runs with the same seed may draw different texts from the same distribution, as times are
measured; greedy texts are equal.

Each method drafts once, then the one with the largest upper confidence bound: mean reward, and a radius that
falls with the steps in which it drafted. What was learned ends with the request. The radius is the paper's,
from each method's own number of steps (one from the number of all steps would be the same for all methods,
and nothing would be explored), times `scale`: for drafts of ten tokens the paper's own, scale 1, exceeds the
differences between methods for hundreds of steps, so the default is smaller. The paper does not give δ.

With the paper's reward, the number of accepted tokens (`reward` "tokens"), a slow draft model wins over a
lookup of which nearly as many tokens are accepted. The default is tokens per second of the step ("speed"). A
method that has not drafted for a while reads what it missed when it is chosen again, and pays for that in its
reward. All methods are verified by rejection, also those that have another exact verifier of their own.

With `lengths`, every method drafts at most that many tokens on a path, and each length is an arm of its own:
`--arms speculative-sampling:depth=8 --lengths 0,2,4,8` chooses the length of one draft model's chains. Within
the names of `outpace bench` methods stand in brackets: `ucb-spec:arms=(prompt-lookup:depth=8,mcsd)`.

Use it for requests of several hundred tokens, or when you do not know which method suits them.
"""

from __future__ import annotations

from functools import partial
from math import inf, log, sqrt
from typing import Literal

from outpace.controllers.bandit import Bandit, arms_of
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.compose.arms import ArmsDrafter
from outpace.drafters.compose.methods import USUAL_METHODS, Methods, check_rejection
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2505.15141", family="control and routing")
def ucb_spec(
    target: Target,
    *,
    arms: Methods = USUAL_METHODS,
    draft: Target | None = None,
    lengths: tuple[int, ...] = (),
    reward: Literal["speed", "tokens"] = "speed",
    scale: float = 0.1,
    delta: float = 0.05,
) -> Parts:
    """The method of several with the largest upper confidence bound, verified by rejection.

    Args:
        arms: methods to choose among, as in prompt-lookup:depth=8,mcsd; without a draft the usual lookups
        draft: draft model of the methods that need one, with the target's vocabulary
        lengths: most tokens of a path, each of which is tried with every method; none: as the methods plan
        reward: what is compared: tokens per second of a step, or accepted tokens
        scale: of the confidence radius: 1 is the paper's, more explores longer, 0 not at all
        delta: probability with which the bounds may be wrong
    """
    methods = arms.parts(target, draft)
    check_rejection(methods)
    choice = Bandit(arms_of(len(methods), lengths), partial(UCB, scale=scale, delta=delta), reward=reward)
    return Parts(target, ArmsDrafter(list(methods.values())), Rejection(), choice)


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
        if unknown:  # of the arms without a measurement the one that was chosen least often
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
