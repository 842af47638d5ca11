"""HedgeSpec (Liu et al. 2026): of several draft models, the one that would have drafted the last tokens best.

New here: DraftComparison, which reads q of all draft models at the generated tokens, NormalHedge and Hedge,
which weigh the models by it. Reuses: ArmsDrafter, DraftModel, Fixed, Rejection. Exact at any temperature: the
model of a step is drawn with noise of its own, with weights that follow from earlier steps, so that the q
that it records is the distribution of its tokens.

A bandit (`ucb-spec`) learns of one drafter per step; here every step tells how likely a draft token of each
model would have been accepted at each generated token, 1 - TV(p, q). From these follow the tokens that a
draft of `depth` tokens would have generated from each position, known `depth` positions later, and
NormalHedge's weights, which need no learning rate. A request begins with equal weights. Where the text of a
request changes, so that another model suits it better, that is seen after about as many tokens as before.

Where acceptance depends on the token, products of 1 - TV along the generated text are not quite the expected
length, as the text is not the draft's; `estimate` "token" takes min(1, q(x) / p(x)) of the generated tokens
x, which is unbiased and varies more. `loss` "rate" compares acceptance per token without delay.

The paper's experts are heads of EAGLE-3, which draft trees. Here they are draft models, which draft chains:
heads cannot be given, and neither is the paper's other statistic, the target's probability of the tokens that
a tree has behind its root. `taps` drafts with several heads, all of them in each step.

Use it with draft models for different domains or languages. All of them read all generated tokens, each in a
forward of its own per step, except those it has read while it drafted: with many or large models that costs
more than the choice gains. With one draft model it is speculative sampling.
"""

from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.controllers.hedge import Hedge
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.compose.arms import ArmsDrafter
from outpace.drafters.model.draft_comparison import DraftComparison
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2510.20064", family="control and routing")
def hedge_spec(
    target: Target,
    *,
    drafts: tuple[Target, ...],
    depth: int = 5,
    loss: Literal["length", "rate"] = "length",
    estimate: Literal["distribution", "token"] = "distribution",
) -> Parts:
    """A chain of one of several draft models, chosen by what all of them would have drafted.

    Args:
        drafts: models that draft, one or more; they have the same vocabulary as the target
        depth: tokens drafted per step
        loss: what is compared: the expected length of a draft, or acceptance per token
        estimate: of acceptance at a generated token: by both distributions, or by their ratio at the token
    """
    if not drafts:
        raise ValueError("hedge-spec needs drafts: give one draft model or more")
    models = [DraftModel(draft, keeps_logits=True) for draft in drafts]
    arms = [Parts(target, model, Rejection(), Fixed(depth)) for model in models]
    compare = DraftComparison(models, by_token=estimate == "token")
    choice = Hedge(len(models), depth, compare, horizon=1 if loss == "rate" else None)
    return Parts(target, ArmsDrafter(arms), Rejection(), choice)
