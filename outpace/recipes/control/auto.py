"""Auto: in each step the fastest of the methods that are possible, or no draft.

New here: FastestArm, which expects of every method the tokens per second that it had in the last steps of
the request and in all others, and tries the others only as far as that costs a hundredth of the time. Reuses:
ArmsDrafter, the methods named by `arms`, Rejection. It is no paper's method: BanditSpec (`ucb-spec`) begins
anew with every request, for which most are too short.

Exact at any temperature: the choice follows from committed tokens, earlier steps and measured times, never
from a token that is drawn in the step. Since times are measured, two runs with the same seed may draw
different texts from the same distribution; greedy texts are equal.

Without a draft it chooses among plain decoding and lookups; with a draft model, or a head, also among the
methods that use it. Which is the fastest is learned from the first requests and kept for the later ones.
"""

from outpace.controllers.fastest_arm import FastestArm
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.compose.arms import ArmsDrafter
from outpace.drafters.compose.methods import Methods, check_rejection
from outpace.verifiers.rejection import Rejection

POSSIBLE = Methods("autoregressive,prompt-lookup,token-recycling,speculative-sampling,lookup-or-draft")


@recipe(paper="arXiv:2505.15141, arXiv:2406.14066", family="control and routing")
def auto(target: Target, *, arms: Methods = POSSIBLE, draft: Target | None = None) -> Parts:
    """The method with the most expected tokens per second, verified by rejection.

    Args:
        arms: methods to choose among, as in autoregressive,prompt-lookup; by default those that are possible
        draft: draft model of the methods that need one, with the target's vocabulary
    """
    methods = arms.parts(target, draft)
    check_rejection(methods)
    return Parts(target, ArmsDrafter(list(methods.values())), Rejection(), FastestArm(len(methods)))
