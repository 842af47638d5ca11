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

from typing import Literal

from outpace.controllers.bandit import Bandit, arms_of
from outpace.controllers.exp3 import EXP3
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
